"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab."""
import importlib
from typing import Any

import openmmlab_compat
from openmmlab_runs.stack import require

from .version import __version__

openmmlab_compat.install()  # where no .pth file did, as in a clone that is not installed
require('mmengine')

from openmmlab_runs.errors import MissingFile, UserError  # noqa: E402

from .models import *  # noqa: E402, F403
from .models import __all__ as _models  # noqa: E402
from .models.load import load_pretrained  # noqa: E402
from .registry import LAZY_MODULES, POSITION_ENCODINGS  # noqa: E402

# What needs mmcv, mmdet, mmseg or mmpretrain is imported only when it is used.
_LAZY = {
    **LAZY_MODULES,
    **dict.fromkeys(('DurableCheckpointHook', 'ExactResumeHook', 'FullDiskHook', 'NonFiniteLossHook', 'PlainLogHook',
                     'ReportHook', 'SameStartHook', 'SaveOnSignalHook'), 'openmmlab_runs.hooks'),
    'LayerDecayOptimWrapperConstructor': 'cpvt_mm.optim',
    'FastCocoMetric': 'openmmlab_runs.evaluation',
    'YouTubeVISMetric': 'openmmlab_runs.evaluation',
    'predict': 'openmmlab_runs.predicting',
}
__all__ = ['POSITION_ENCODINGS', 'MissingFile', 'UserError', '__version__', 'load_pretrained', *_models]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
