from .base import PositionEncoding, PositionEncodings, build_position_encodings
from .peg import PEG

__all__ = ['PEG', 'PositionEncoding', 'PositionEncodings', 'build_position_encodings']
