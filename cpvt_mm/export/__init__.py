from openmmlab_runs.libraries import require

require('mmcv')

from .exporting import exported, fuse, load_part  # noqa: E402

__all__ = ['exported', 'fuse', 'load_part']
