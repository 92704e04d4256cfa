"""Position encodings, which a stage builds from configs."""
from collections.abc import Sequence
from typing import Any

from cpvt_mm.registry import POSITION_ENCODINGS

from .base import PositionEncoding, PositionEncodings, StageSpec
from .biases import ContinuousRelativePE, FirePE, LookHerePE, RelativePE
from .parabolic import ParabolicPE
from .peg import PEG
from .rotary import MixedRotaryPE, RotaryPE
from .tables import LearnablePE, RandomFourierPE, RandomTablePE, SinusoidalPE

__all__ = ['PEG', 'ContinuousRelativePE', 'FirePE', 'LearnablePE', 'LookHerePE', 'MixedRotaryPE', 'ParabolicPE',
           'PositionEncoding', 'PositionEncodings', 'RandomFourierPE', 'RandomTablePE', 'RelativePE', 'RotaryPE',
           'SinusoidalPE', 'StageSpec', 'build_position_encodings']


def build_position_encodings(cfg: dict[str, Any] | Sequence[dict[str, Any]] | None,
                             stage: StageSpec) -> PositionEncodings:
    """Builds the encodings of one stage from None, one config (`dict(type='PEG', ...)`) or a sequence of configs.

    mmengine raises a TypeError or KeyError for what is no config of a registered encoding.
    """
    cfgs = [] if cfg is None else [cfg] if isinstance(cfg, dict) else cfg
    own = dict(stage=stage, _scope_='cpvt_mm')
    return PositionEncodings(POSITION_ENCODINGS.build(one, default_args=own) for one in cfgs)
