from .backbones import ARCHS, PyramidCPVT
from .position_encodings import PEG, PositionEncoding

__all__ = ['ARCHS', 'PEG', 'PositionEncoding', 'PyramidCPVT']
