from cpvt_mm.encodings import (
    PEG,
    ContinuousRelativePE,
    FirePE,
    LearnablePE,
    LookHerePE,
    MixedRotaryPE,
    ParabolicPE,
    PositionEncoding,
    RandomFourierPE,
    RandomTablePE,
    RelativePE,
    RotaryPE,
    SinusoidalPE,
    StageSpec,
)
from cpvt_mm.zoo.families import PLAIN_ARCHS, PYRAMID_ARCHS

from .cpvt import CPVT
from .create import create_backbone, list_backbones
from .neck import SimpleFeaturePyramid
from .pyramid_cpvt import PyramidCPVT

__all__ = ['CPVT', 'PEG', 'PLAIN_ARCHS', 'PYRAMID_ARCHS', 'ContinuousRelativePE', 'FirePE', 'LearnablePE',
           'LookHerePE', 'MixedRotaryPE', 'ParabolicPE', 'PositionEncoding', 'PyramidCPVT', 'RandomFourierPE',
           'RandomTablePE', 'RelativePE', 'RotaryPE', 'SimpleFeaturePyramid', 'SinusoidalPE', 'StageSpec',
           'create_backbone', 'list_backbones']
