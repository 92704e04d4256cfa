"""The names that importing the package imports; this registers the backbones and position encodings."""
from openmmlab_tools.libraries import require

require('mmengine')

from openmmlab_tools.errors import MissingFile, UserError  # noqa: E402

from .encodings import *  # noqa: E402, F403
from .encodings import __all__ as _encodings  # noqa: E402
from .models import *  # noqa: E402, F403
from .models import __all__ as _models  # noqa: E402
from .registry import POSITION_ENCODINGS  # noqa: E402
from .version import __version__  # noqa: E402
from .zoo.load import load_pretrained  # noqa: E402

__all__ = ['POSITION_ENCODINGS', 'MissingFile', 'UserError', '__version__', 'load_pretrained', *_encodings, *_models]
