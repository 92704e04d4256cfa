"""The module `mmcv._ext`, whose functions mmcv's wrappers call, without a compiler.

Python runs this file under that name where mmcv has no compiled operators. A function without a replacement exists, and
raises an error when it is called.
"""
from collections.abc import Callable
from typing import NoReturn

import torch

try:
    import torchvision
    torchvision.ops.nms(torch.zeros(0, 4), torch.zeros(0), .5)
except Exception as error:  # a torchvision for another torch raises RuntimeError, OSError or ImportError
    raise ImportError(
        f'mmcv has no compiled operators here, and torchvision, whose operators would stand in for them, does not work '
        f'({str(error).splitlines()[0]}): install the torchvision that goes with torch {torch.__version__}, or compile '
        'mmcv.') from None

from openmmlab_tools.compat.operators.boxes import *  # noqa: F403
from openmmlab_tools.compat.operators.deformable import *  # noqa: F403
from openmmlab_tools.compat.operators.losses import *  # noqa: F403
from openmmlab_tools.compat.operators.maps import *  # noqa: F403
from openmmlab_tools.compat.operators.regions import *  # noqa: F403


def get_compiler_version() -> str:
    """Returns what mmengine prints as mmcv's compiler."""
    return f'none, operators of torchvision {torchvision.__version__}'


def get_compiling_cuda_version() -> str:
    """Returns the version of CUDA that torch was built with."""
    return torch.version.cuda or 'not available'


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith('__'):  # Python looks these up in any module
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f'{name} has no replacement in openmmlab_tools.compat, and mmcv has no compiled '
                                  'operators here: compile mmcv to use it.')
    return missing
