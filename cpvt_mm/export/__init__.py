from openmmlab_runs.libraries import require

require('mmcv')

from .exporting import PARTS, exported, fuse, load_part  # noqa: E402

__all__ = ['PARTS', 'exported', 'fuse', 'load_part']
