from cpvt_mm.encodings import (
    PEG,
    ContinuousRelativePE,
    FirePE,
    LearnablePE,
    LookHerePE,
    MixedRotaryPE,
    PositionEncoding,
    RandomFourierPE,
    RandomTablePE,
    RelativePE,
    RotaryPE,
    SinusoidalPE,
    StageSpec,
)

from .cpvt import CPVT, PLAIN_ARCHS
from .create import create_backbone, list_backbones
from .neck import SimpleFeaturePyramid
from .pyramid_cpvt import PYRAMID_ARCHS, PyramidCPVT

__all__ = ['CPVT', 'PEG', 'PLAIN_ARCHS', 'PYRAMID_ARCHS', 'ContinuousRelativePE', 'FirePE', 'LearnablePE',
           'LookHerePE', 'MixedRotaryPE', 'PositionEncoding', 'PyramidCPVT', 'RandomFourierPE', 'RandomTablePE',
           'RelativePE', 'RotaryPE', 'SimpleFeaturePyramid', 'SinusoidalPE', 'StageSpec', 'create_backbone',
           'list_backbones']
