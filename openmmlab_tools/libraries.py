"""Imports the OpenMMLab stack, with messages that say what to install if a package is missing."""
import importlib
import inspect
import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from .errors import first_line

INSTALL = ("install one stack, in the clone pip install -e '.[openmmlab]' or '.[onedl]', after pip uninstall mmcv if "
           'its operators were compiled for another torch (docs/get_started.md)')
WITH_MODELS = ('mmdet', 'mmseg', 'mmpretrain')  # their models import mmpretrain and transformers
MAJOR = dict(mmengine='0', mmcv='2', mmdet='3', mmseg='1', mmpretrain='1')  # versions that are known here
INSTALL_MMPRETRAIN = ('pip install onedl-mmpretrain, the torchvision that goes with your torch and, if you have '
                      "transformers, 'transformers<5' (docs/guides/classification.md)")


def require(*modules: str) -> None:
    """Imports modules of OpenMMLab. If a module is missing, raises an ImportError that says what to install."""
    for module in modules:
        try:
            imported = importlib.import_module(module)
            version = str(getattr(imported, '__version__', 'unknown'))
            if version.partition('.')[0] != MAJOR.get(module, version.partition('.')[0]):
                raise ImportError(f'Python imports version {version} from {next(iter(imported.__path__))}, but version '
                                  f'{MAJOR[module]} is required: remove its folder from PYTHONPATH, or rename it')
            if module in MAJOR and not __debug__:  # python -O has left out the library's asserts on versions
                exec(compile(inspect.getsource(imported), module, 'exec', optimize=0), {**vars(imported)})
            if module in WITH_MODELS:
                with quietly():
                    importlib.import_module(f'{module}.models')
        # The libraries assert the versions of mmcv and mmengine. Ops for another version of torch raise OSError,
        # torchvision's ops RuntimeError. mmpretrain with transformers 5 raises TypeError.
        except (ImportError, AssertionError, OSError, RuntimeError, TypeError) as error:
            install = INSTALL_MMPRETRAIN if module == 'mmpretrain' else INSTALL
            raise ImportError(f'{module} cannot be imported ({first_line(error)}): {install}.') from None


def shipped_configs(library: str) -> Path:
    """Returns the folder of the configs that come with an installed library."""
    require(library)
    return Path(str(sys.modules[library].__file__)).resolve().parent / '.mim/configs'


@contextmanager
def logging_from(level: int, logger: logging.Logger) -> Iterator[None]:
    """Makes a logger silent below a level. (logging.disable would silence mmengine's loggers for good.)"""
    before = logger.level
    logger.setLevel(max(level, before))
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def quietly() -> Iterator[None]:
    """Hides warnings during imports that users cannot fix: torch's about pytree, and mmpretrain's about OneDL."""
    with logging_from(logging.ERROR, logging.getLogger('torch.utils._pytree')), redirect_stdout(io.StringIO()):
        yield


@contextmanager
def without_pkg_resources_warning() -> Iterator[None]:
    """Hides the warning that pkg_resources is deprecated: mmengine reads `mmdet::` with it."""
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'pkg_resources is deprecated', UserWarning)
        yield
