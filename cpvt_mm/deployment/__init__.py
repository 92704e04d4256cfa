from cpvt_mm.stack import require

require('mmcv')

from .exporting import exported  # noqa: E402
from .parts import PARTS, load_part  # noqa: E402

__all__ = ['PARTS', 'exported', 'load_part']
