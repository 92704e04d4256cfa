"""The backbone of the original code of Twins, `detection/gvt.py` of its repository, as module `gvt` on the path.

It is made for mmdet 2 and mmcv 1, of which it uses nothing in a forward pass.
"""
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest.mock import patch

from mmengine.registry import Registry
from torch import nn


def import_original() -> type[nn.Module]:
    """Its pyramid with PEG.

    Raises:
        ImportError: If there is no module `gvt`, or timm, which it needs, is not installed.
    """
    with patch.dict('sys.modules', _old_modules()):
        return importlib.import_module('gvt').CPVTV2


def _old_modules() -> dict[str, ModuleType]:
    """What its code imports of mmdet 2, mmseg 0 and mmcv 1, by name."""
    def undecorated(*args: object, **kwargs: object) -> Callable[[Any], Any]:
        return lambda function: function

    names = dict(load_checkpoint=None, auto_fp16=undecorated, force_fp32=undecorated, get_root_logger=None,
                 BACKBONES=Registry('backbone of the original code'))
    modules = {}
    for name in ('mmcv.runner', 'mmdet.models.builder', 'mmdet.utils', 'mmseg.models.builder', 'mmseg.utils'):
        modules[name] = ModuleType(name)
        vars(modules[name]).update(names)
    return modules
