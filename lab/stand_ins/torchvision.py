"""A stand-in for torchvision: its classes can be imported and subclassed, but using them raises an error."""
import enum
import sys
from types import ModuleType

__version__ = '0.0 (a stand-in)'
# The modules that mmpretrain, timm and segmentation_models_pytorch import.
MODULES = ('datasets', 'models', 'models.densenet', 'models.resnet', 'models.vgg', 'ops', 'ops.boxes', 'ops.misc',
           'transforms', 'transforms.functional', 'transforms.transforms')
FUNCTIONS = ('make_layers',)


class _Missing:

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise _error(type(self).__name__)


class _InterpolationMode(enum.Enum):
    """The modes that timm uses as keys of its tables."""
    NEAREST = enum.auto()
    BILINEAR = enum.auto()
    BICUBIC = enum.auto()
    BOX = enum.auto()
    HAMMING = enum.auto()
    LANCZOS = enum.auto()


class _Module(ModuleType):

    def __getattr__(self, name: str) -> type:
        if name.startswith('__'):  # Python looks these up in any module
            raise AttributeError(name)
        if not name[0].isupper() and name not in FUNCTIONS:
            raise _error(f'{self.__name__}.{name}')
        return _InterpolationMode if name == 'InterpolationMode' else type(name, (_Missing,), {})


def _error(what: str) -> ImportError:
    return ImportError(f'{what} needs torchvision, which is not installed: install the version that goes with your '
                       'torch.')


for _name in MODULES:
    sys.modules[f'{__name__}.{_name}'] = _module = _Module(f'{__name__}.{_name}')
    _parent, _, _child = _module.__name__.rpartition('.')
    setattr(sys.modules[_parent], _child, _module)
