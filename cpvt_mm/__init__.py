"""CPVT, a vision transformer with conditional position encodings, as a backbone for OpenMMLab.

Importing it registers the backbones and position encodings. Where to look:

- `models`: `PyramidCPVT` and `CPVT`; `layers` has their layers. `tokens`: what a sequence of tokens is.
- `encodings`: `PEG` and the other position encodings.
- `zoo`: a file for each family of backbones, with its sizes, formats of checkpoints and released weights.
- `swap`, `new_config`: put the backbone into a config of mmdet or mmseg, and a config around your data.
- `export`, `hub`, `timm`, `optim`, `preprocessors`, `batch_invariance`: one thing each, as named.

An image takes this way; each function calls the next one:

1. `models.backbone.Backbone.forward` checks the images.
2. `models.pyramid_cpvt.PyramidCPVT.tokens_after` runs one stage after another, on tokens and their grid.
3. `models.layers.PyramidStage.forward` embeds patches and runs blocks; `to_output` makes a map of the tokens.
4. `models.layers.Block.forward` is two residual lines: attention and MLP.
5. `encodings.base.PositionEncodings.tokens` comes after each block: `encodings.peg.PEG.tokens` is `x + conv(x)`.

Training, testing, predicting and reading data are in `openmmlab_runs`, which does not import this package.
"""
import importlib
from typing import Any

from openmmlab_runs.libraries import require

from .version import __version__

require('mmengine')

from openmmlab_runs.errors import MissingFile, UserError  # noqa: E402

from .models import *  # noqa: E402, F403
from .models import __all__ as _models  # noqa: E402
from .registry import LAZY_MODULES, POSITION_ENCODINGS  # noqa: E402
from .zoo.load import load_pretrained  # noqa: E402

# What needs mmcv, mmdet, mmseg or mmpretrain is imported only when it is used.
_LAZY = {
    **LAZY_MODULES,
    'LayerDecayOptimWrapperConstructor': 'cpvt_mm.optim',
    'make_batch_invariant': 'cpvt_mm.batch_invariance',
    'predict': 'openmmlab_runs.predict.predicting',
}
__all__ = ['POSITION_ENCODINGS', 'MissingFile', 'UserError', '__version__', 'load_pretrained', *_models]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
