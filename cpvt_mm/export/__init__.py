from openmmlab_runs.libraries import require

require('mmcv')

from .exporting import (  # noqa: E402
    PARTS,
    exported,
    load_part,
)

__all__ = ['PARTS', 'exported', 'load_part']
