"""The OpenMMLab stack: what is installed, and what to install where it is not."""
import importlib

from .errors import first_line

INSTALL = "install one stack, pip install 'cpvt_mm[openmmlab]' or 'cpvt_mm[onedl]' (README, section Install)"
INSTALL_MMPRETRAIN = ('pip install mmpretrain, and the torchvision that goes with your torch (README, section '
                      'Classification)')


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
        # torchvision RuntimeError.
        except (ImportError, AssertionError, OSError, RuntimeError) as error:
            install = INSTALL_MMPRETRAIN if module == 'mmpretrain' else INSTALL
            raise ImportError(
                f'cpvt_mm needs {module}, which does not import ({first_line(error)}): {install}.') from None
