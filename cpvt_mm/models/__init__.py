from .cpvt import CPVT, PLAIN_ARCHS
from .create import create_backbone, list_backbones
from .position_encodings import (
    PEG,
    LearnablePE,
    PositionEncoding,
    RandomFourierPE,
    RandomTablePE,
    RelativePE,
    RotaryPE,
    SinusoidalPE,
    StageSpec,
)
from .pyramid_cpvt import PYRAMID_ARCHS, PyramidCPVT
from .simple_feature_pyramid import SimpleFeaturePyramid

__all__ = [
    'CPVT',
    'PEG',
    'PLAIN_ARCHS',
    'PYRAMID_ARCHS',
    'LearnablePE',
    'PositionEncoding',
    'PyramidCPVT',
    'RandomFourierPE',
    'RandomTablePE',
    'RelativePE',
    'RotaryPE',
    'SimpleFeaturePyramid',
    'SinusoidalPE',
    'StageSpec',
    'create_backbone',
    'list_backbones',
]
