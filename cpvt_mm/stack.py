"""The OpenMMLab stack: what is installed, and what to install where it is not."""
import importlib

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
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ImportError(f'cpvt_mm needs {module}, which does not import ({reason}): {INSTALL}.') from None
