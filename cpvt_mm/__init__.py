"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab."""
from .stack import require
from .version import __version__

require('mmengine')

from .models import *  # noqa: E402, F403
from .models import __all__ as _models  # noqa: E402

__all__ = ['__version__', *_models]
