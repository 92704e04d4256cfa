"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab."""
import openmmlab_compat

from .stack import require
from .version import __version__

openmmlab_compat.install()  # where no .pth file did, as in a clone that is not installed
require('mmengine')

from .models import *  # noqa: E402, F403
from .models import __all__ as _models  # noqa: E402

__all__ = ['__version__', *_models]
