"""The OpenMMLab stack: what is installed, and what to install where it is not."""
import importlib

from .errors import first_line

INSTALL = "install one stack, pip install 'cpvt_mm[openmmlab]' or 'cpvt_mm[onedl]' (README, section Install)"


def require(*modules: str) -> None:
    """Imports modules of the stack.

    Raises:
        ImportError: One sentence on what is missing or does not match, and what to install.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        # mmdet and mmseg assert the versions of mmcv and mmengine; ops built for another torch raise OSError.
        except (ImportError, AssertionError, OSError) as error:
            raise ImportError(
                f'cpvt_mm needs {module}, which does not import ({first_line(error)}): {INSTALL}.') from None
