"""Stand-ins for modules that OpenMMLab's packages miss on today's machines, found only where no real one is.

- `mmcv._ext`, where mmcv has no compiled operators (`mmcv-lite`, or `onedl-mmcv` built without torch): `mmcv_ext.py`,
  on operators of torchvision and plain torch.
- `pkg_resources`, which setuptools 82 dropped, and mmengine 0.10.7 reads names such as `mmdet::...` with:
  `pkg_resources.py`.
- `pkgutil.find_loader`, which Python 3.14 dropped, and mmengine up to 0.10.12 and mmcv up to 2.3.6 call: a function
  here.

`install()` runs whenever Python starts, by the line in `openmmlab_tools.pth`, which is installed beside the packages.
It does not import torch, nor the rest of this repository.
"""
import os
import sys
from importlib.machinery import ModuleSpec

# Modules, the files that stand in for them, and packages that these files need.
STAND_INS = {'mmcv._ext': ('mmcv_ext.py', 'torchvision'), 'pkg_resources': ('pkg_resources.py', None)}


class StandIns:
    """A finder of modules that comes last in `sys.meta_path`: it is asked only if no other finder knows a module."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Returns where the stand-in of a module is, or None if there is none, or what it needs is missing."""
        if name not in STAND_INS:
            return None
        from importlib.util import find_spec, spec_from_file_location
        file, needed = STAND_INS[name]
        if needed and not find_spec(needed):
            return None
        return spec_from_file_location(name, os.path.join(os.path.dirname(__file__), file))


def install() -> None:
    """Lets Python find the stand-ins. Calling it again changes nothing."""
    if StandIns not in sys.meta_path:
        sys.meta_path.append(StandIns)
    if sys.version_info >= (3, 14):
        import pkgutil
        if not hasattr(pkgutil, 'find_loader'):
            pkgutil.find_loader = find_loader


def find_loader(name: str) -> object | None:
    """Returns the loader of a module, or None, as `pkgutil.find_loader` did before Python 3.14."""
    from importlib.util import find_spec
    spec = find_spec(name)
    return spec and spec.loader
