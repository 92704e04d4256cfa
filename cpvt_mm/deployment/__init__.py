from cpvt_mm.stack import require

require('mmcv')

from .batches import SHAPES  # noqa: E402
from .checking import TOLERANCE, Difference, check, compare  # noqa: E402
from .exporting import exported  # noqa: E402
from .parts import PARTS, describe, describe_classes, load_part  # noqa: E402

__all__ = ['PARTS', 'SHAPES', 'TOLERANCE', 'Difference', 'check', 'compare', 'describe', 'describe_classes', 'exported',
           'load_part']
