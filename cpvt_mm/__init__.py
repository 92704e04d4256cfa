"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab."""
import warnings

from .stack import require
from .version import __version__

# mmengine uses pkg_resources where a config names another package, and whoever runs a tool can do nothing about it.
warnings.filterwarnings('ignore', 'pkg_resources is deprecated', UserWarning)
require('mmengine')

from .checkpoints.reading import allow_log as _allow_log  # noqa: E402
from .models import *  # noqa: E402, F403
from .models import __all__ as _models  # noqa: E402

# For whoever reads a checkpoint with mmengine's own means once a config has imported this package.
_allow_log()

__all__ = ['__version__', *_models]
