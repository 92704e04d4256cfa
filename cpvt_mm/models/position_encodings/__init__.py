from .base import PositionEncoding, PositionEncodings, StageSpec, build_position_encodings
from .peg import PEG
from .relative import RelativePE
from .rotary import RotaryPE
from .sinusoidal import RandomFourierPE, SinusoidalPE
from .tables import LearnablePE, RandomTablePE

__all__ = ['PEG', 'LearnablePE', 'PositionEncoding', 'PositionEncodings', 'RandomFourierPE', 'RandomTablePE',
           'RelativePE', 'RotaryPE', 'SinusoidalPE', 'StageSpec', 'build_position_encodings']
