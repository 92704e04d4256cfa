"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab.

Importing it registers the backbones and position encodings. CONTRIBUTING.md tells what each folder has, and the way of
an image through the code.
"""
import importlib
from typing import TYPE_CHECKING, Any

import openmmlab_tools.compat
from openmmlab_tools.libraries import require

from .version import __version__

openmmlab_tools.compat.install()  # where no start-up file did, as in a clone that is not installed
require('mmengine')

from openmmlab_tools.errors import MissingFile, UserError  # noqa: E402

from .encodings import *  # noqa: E402, F403
from .encodings import __all__ as _encodings  # noqa: E402
from .models import *  # noqa: E402, F403
from .models import __all__ as _models  # noqa: E402
from .registry import LAZY_MODULES, POSITION_ENCODINGS  # noqa: E402
from .zoo.load import load_pretrained  # noqa: E402

# What needs mmcv, mmdet, mmseg or mmpretrain is imported only when it is used.
_LAZY = {
    **LAZY_MODULES,
    'make_batch_invariant': 'cpvt_mm.batch_invariance',
    'predict': 'openmmlab_tools.predict.predicting',
}
__all__ = ['POSITION_ENCODINGS', 'MissingFile', 'UserError', '__version__', 'load_pretrained', *_encodings, *_models]


if TYPE_CHECKING:  # the names of _LAZY with their types; a function would make any name right
    from openmmlab_tools.predict.predicting import predict as predict

    from .batch_invariance import BatchInvariantHook as BatchInvariantHook
    from .batch_invariance import make_batch_invariant as make_batch_invariant
    from .mask_transformers.backbones import FrozenMaskTransformer as FrozenMaskTransformer
    from .mask_transformers.backbones import PlainMaskTransformer as PlainMaskTransformer
    from .mask_transformers.heads import PlainMaskHead as PlainMaskHead
    from .mask_transformers.heads import PlainMaskSegHead as PlainMaskSegHead
    from .mask_transformers.masked_attention import MaskAnnealingHook as MaskAnnealingHook
    from .optim import LayerDecayOptimWrapperConstructor as LayerDecayOptimWrapperConstructor
    from .preprocessors import DetDataPreprocessor as DetDataPreprocessor
    from .preprocessors import SegDataPreProcessor as SegDataPreProcessor
else:
    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
