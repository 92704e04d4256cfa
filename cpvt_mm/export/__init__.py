from openmmlab_tools.libraries import require

require('mmcv')

from .exporting import exported  # noqa: E402
from .parts import load_part  # noqa: E402

__all__ = ['exported', 'load_part']
