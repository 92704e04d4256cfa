"""Position encodings, which a stage builds from configs."""
from collections.abc import Sequence
from typing import Any

from cpvt_mm.registry import POSITION_ENCODINGS
from cpvt_mm.tokens.validation import check_names

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

    Raises a TypeError if `cfg` has another type or sets the stage, or a ValueError if a type is not registered.
    """
    cfgs = [] if cfg is None else [cfg] if isinstance(cfg, dict) else cfg
    if not isinstance(cfgs, (list, tuple)) or not all(isinstance(c, dict) and 'type' in c for c in cfgs):
        raise TypeError(f'position_encoding is {cfg!r}, but must be None, a dict with a type, or a list of such dicts.')
    POSITION_ENCODINGS.import_from_location()
    for c in cfgs:
        if isinstance(c['type'], str):
            name = c['type'].removeprefix('cpvt_mm.')
            check_names('a type of position_encoding', [name], sorted(POSITION_ENCODINGS.module_dict))
        if 'stage' in c:
            raise TypeError(f'position_encoding sets stage={c["stage"]!r}: remove it, the backbone sets the stage.')
    return PositionEncodings(POSITION_ENCODINGS.build({**c, 'stage': stage, '_scope_': 'cpvt_mm'}) for c in cfgs)
