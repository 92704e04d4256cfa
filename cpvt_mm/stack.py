"""The OpenMMLab stack: what is installed, and what to install where it is not."""
import importlib

from .errors import first_line

INSTALL = "install one stack, pip install 'cpvt_mm[openmmlab]' or 'cpvt_mm[onedl]' (README, section Install)"
# transformers is optional. mmpretrain was tried with these versions of it.
INSTALL_MMPRETRAIN = ('pip install mmpretrain==1.2.0, the torchvision that goes with your torch and, if you have '
                      'transformers, its version 4.49, not 4.57 or 5 (README, section Classification)')


def require(*modules: str) -> None:
    """Imports modules of the stack, or mmpretrain, which no stack brings.

    Raises:
        ImportError: One sentence on what is missing or does not match, and what to install.
    """
    for module in modules:
        try:
            importlib.import_module(module)
            if module == 'mmpretrain':  # which alone does not import torchvision, but everything in it does
                importlib.import_module('mmpretrain.models')
        # The libraries assert the versions of mmcv and mmengine; ops built for another torch raise OSError, those of
        # torchvision RuntimeError; mmpretrain with transformers 5 raises TypeError.
        except (ImportError, AssertionError, OSError, RuntimeError, TypeError) as error:
            install = INSTALL_MMPRETRAIN if module == 'mmpretrain' else INSTALL
            raise ImportError(
                f'cpvt_mm needs {module}, which does not import ({first_line(error)}): {install}.') from None
