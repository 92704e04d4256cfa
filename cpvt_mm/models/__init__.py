from .backbones import ARCHS, CPVT, PLAIN_ARCHS, PyramidCPVT
from .create import create_backbone, list_backbones
from .necks import SimpleFeaturePyramid
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

__all__ = ['ARCHS', 'CPVT', 'PEG', 'PLAIN_ARCHS', 'LearnablePE', 'PositionEncoding', 'PyramidCPVT', 'RandomFourierPE',
           'RandomTablePE', 'RelativePE', 'RotaryPE', 'SimpleFeaturePyramid', 'SinusoidalPE', 'StageSpec',
           'create_backbone', 'list_backbones']
