"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab."""
import warnings

import openmmlab_compat

from .stack import require
from .version import __version__

# mmengine uses pkg_resources if a config names another package; users of the tools cannot change this.
warnings.filterwarnings('ignore', 'pkg_resources is deprecated', UserWarning)
openmmlab_compat.install()  # where no .pth file did, as in a clone that is not installed
require('mmengine')

from .models import *  # noqa: E402, F403
from .models import __all__ as _models  # noqa: E402
from .weights.reading import allow_log as _allow_log  # noqa: E402

# Lets mmengine itself load checkpoints after a config has imported this package.
_allow_log()

__all__ = ['__version__', *_models]
