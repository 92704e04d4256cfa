"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab.

Importing it registers the backbones and position encodings. CONTRIBUTING.md tells what each folder has, and the way of
an image through the code.
"""
import importlib
from typing import TYPE_CHECKING, Any

import openmmlab_tools.compat
from openmmlab_tools.libraries import require
from openmmlab_tools.starting import parses_arguments

openmmlab_tools.compat.install()  # where no start-up file did, as in a clone that is not installed

if not parses_arguments(__name__):  # commands import `public` after that
    require('mmengine')
    importlib.import_module('cpvt_mm.registry')

KNOWN = ('__all__', '__version__')
# Each name is imported when it is used. These names and those in `registry.LAZY_MODULES` come from the given modules,
# all other names from `public`.
LATE = {
    'make_batch_invariant': 'cpvt_mm.batch_invariance',
    'predict': 'openmmlab_tools.predict.predicting',
}


if TYPE_CHECKING:  # the names with their types; a function would make any name right
    from openmmlab_tools.predict.predicting import predict as predict

    from .batch_invariance import BatchInvariantHook as BatchInvariantHook
    from .batch_invariance import make_batch_invariant as make_batch_invariant
    from .encodings import *  # noqa: F403
    from .mask_transformers.backbones import FrozenMaskTransformer as FrozenMaskTransformer
    from .mask_transformers.backbones import PlainMaskTransformer as PlainMaskTransformer
    from .mask_transformers.heads import PlainMaskHead as PlainMaskHead
    from .mask_transformers.heads import PlainMaskSegHead as PlainMaskSegHead
    from .mask_transformers.masked_attention import MaskAnnealingHook as MaskAnnealingHook
    from .models import *  # noqa: F403
    from .optim import LayerDecayOptimWrapperConstructor as LayerDecayOptimWrapperConstructor
    from .preprocessors import DetDataPreprocessor as DetDataPreprocessor
    from .public import *  # noqa: F403
    from .public import __all__ as __all__
    from .seg_preprocessor import SegDataPreProcessor as SegDataPreProcessor
else:
    def __getattr__(name: str) -> Any:
        if name in KNOWN or not name.startswith('_'):
            modules = {**importlib.import_module('cpvt_mm.registry').LAZY_MODULES, **LATE}
            module = importlib.import_module(modules.get(name, 'cpvt_mm.public'))
            if name in vars(module):
                return vars(module)[name]
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__() -> list[str]:
    late = importlib.import_module('cpvt_mm.registry').LAZY_MODULES
    return sorted({*globals(), *late, *LATE, *importlib.import_module('cpvt_mm.public').__all__})
