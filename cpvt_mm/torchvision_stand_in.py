"""mmpretrain without torchvision.

mmpretrain imports torchvision, which its requirements do not name, and uses it for transforms called 'torchvision/...',
for one of MAE's, and for visual grounding only. PyPI has no torchvision for CPU builds of torch on Linux.
"""
import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

# Those that name torchvision at import are among them.
MMPRETRAIN = ('mmpretrain', 'mmpretrain.datasets', 'mmpretrain.evaluation', 'mmpretrain.models')


def import_mmpretrain() -> None:
    """Imports mmpretrain; where torchvision is not installed, what needs it raises an ImportError when it is used.

    Raises:
        ImportError: If mmpretrain, or what it needs, is not installed.
        RuntimeError: If the torchvision that is installed is made for another torch.
    """
    modules: dict[str, ModuleType] = {}
    try:
        importlib.import_module('torchvision')
    except ModuleNotFoundError as error:
        if error.name != 'torchvision':
            raise
        modules = _stand_ins()
    sys.modules.update(modules)
    try:
        for module in MMPRETRAIN:
            importlib.import_module(module)
    finally:
        for name in modules:
            del sys.modules[name]


def _stand_ins() -> dict[str, ModuleType]:
    modules: dict[str, ModuleType] = {name: _StandIn(name) for name in (
        'torchvision', 'torchvision.ops', 'torchvision.ops.boxes', 'torchvision.transforms',
        'torchvision.transforms.functional', 'torchvision.transforms.transforms')}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, loader=None)  # as find_spec wants it
        parent, _, child = name.rpartition('.')
        if parent:
            setattr(modules[parent], child, module)
    modules['torchvision.transforms'].RandomResizedCrop = _MissingClass
    modules['torchvision.transforms.transforms'].InterpolationMode = _MissingClass
    return modules


class _StandIn(ModuleType):
    """Can be imported, but holds nothing."""

    def __getattr__(self, name: str) -> object:
        if name.startswith('__'):  # what Python asks of any module
            raise AttributeError(name)
        raise _missing(f'{self.__name__}.{name}')


class _MissingClass:
    """Can be named and inherited, but not built."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _missing('A transform of the pipeline')


def _missing(what: str) -> ImportError:
    return ImportError(f'{what} needs torchvision, which is not installed: install the version that goes with your '
                       'torch.')
