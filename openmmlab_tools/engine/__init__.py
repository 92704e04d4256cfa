from openmmlab_tools.libraries import require

require('mmcv')

from openmmlab_tools import storage  # noqa: E402, F401  # registers a file backend

from .config import load_config  # noqa: E402
from .run import test, train  # noqa: E402
from .steps import prepare  # noqa: E402

__all__ = ['load_config', 'prepare', 'test', 'train']
