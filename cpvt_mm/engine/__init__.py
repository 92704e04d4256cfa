from cpvt_mm.stack import require

require('mmcv')

from .config import load_config  # noqa: E402
from .prepare import prepare  # noqa: E402
from .run import test, train  # noqa: E402

__all__ = ['load_config', 'prepare', 'test', 'train']
