from cpvt_mm.stack import require

require('mmcv')

from .comparing import SHAPES, check, compare  # noqa: E402
from .exporting import exported  # noqa: E402
from .parts import PARTS, load_part  # noqa: E402

__all__ = ['PARTS', 'SHAPES', 'check', 'compare', 'exported', 'load_part']
