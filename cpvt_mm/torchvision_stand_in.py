"""mmpretrain and timm without torchvision.

Both import torchvision, which mmpretrain's requirements do not name. mmpretrain uses it for transforms called
'torchvision/...', for one of MAE's, and for visual grounding only; timm for data, and for norms that are frozen. PyPI
has no torchvision for CPU builds of torch on Linux.
"""
import enum
import importlib
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from types import ModuleType

# Those that name torchvision at import are among them.
MMPRETRAIN = ('mmpretrain', 'mmpretrain.datasets', 'mmpretrain.evaluation', 'mmpretrain.models')
# And what these import of torchvision.
STAND_INS = ('torchvision', 'torchvision.datasets', 'torchvision.ops', 'torchvision.ops.boxes', 'torchvision.ops.misc',
             'torchvision.transforms', 'torchvision.transforms.functional', 'torchvision.transforms.transforms')


def import_mmpretrain() -> None:
    """Imports mmpretrain; where torchvision is not installed, what needs it raises an ImportError when it is used.

    Raises:
        ImportError: If mmpretrain, or what it needs, is not installed.
        RuntimeError: If the torchvision that is installed is made for another torch.
    """
    _import(MMPRETRAIN)


def import_timm() -> None:
    """Imports timm in the same way."""
    _import(['timm'])


def _import(names: Iterable[str]) -> None:
    modules: dict[str, ModuleType] = {}
    try:
        importlib.import_module('torchvision')
    except ModuleNotFoundError as error:
        if error.name != 'torchvision':
            raise
        modules = _stand_ins()
    sys.modules.update(modules)
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        for name in modules:
            del sys.modules[name]


def _stand_ins() -> dict[str, ModuleType]:
    modules: dict[str, ModuleType] = {name: _StandIn(name) for name in STAND_INS}
    for name, module in modules.items():
        module.__spec__ = ModuleSpec(name, loader=None)  # as find_spec wants it
        parent, _, child = name.rpartition('.')
        if parent:
            setattr(modules[parent], child, module)
    # mmpretrain lists those that there are.
    modules['torchvision.transforms'].RandomResizedCrop = _missing_class('RandomResizedCrop')
    for name in ('functional', 'transforms'):
        modules[f'torchvision.transforms.{name}'].InterpolationMode = _InterpolationMode
    return modules


class _StandIn(ModuleType):
    """Can be imported, and classes from it, but holds nothing that can be used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith('__'):  # what Python asks of any module
            raise AttributeError(name)
        if name[0].isupper():
            return _missing_class(name)
        raise _missing(f'{self.__name__}.{name}')


class _MissingClass:
    """Can be named and inherited, but not built."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _missing(type(self).__name__)


def _missing_class(name: str) -> type:
    return type(name, (_MissingClass,), {})


class _InterpolationMode(enum.Enum):
    """Keys of timm's tables."""
    NEAREST = enum.auto()
    BILINEAR = enum.auto()
    BICUBIC = enum.auto()
    BOX = enum.auto()
    HAMMING = enum.auto()
    LANCZOS = enum.auto()


def _missing(what: str) -> ImportError:
    return ImportError(f'{what} needs torchvision, which is not installed: install the version that goes with your '
                       'torch.')
