from .base import PositionEncoding, PositionEncodings, StageSpec, build_position_encodings
from .fire import FirePE
from .look_here import LookHerePE
from .mixed_rotary import MixedRotaryPE
from .peg import PEG
from .relative import ContinuousRelativePE, RelativePE
from .rotary import RotaryPE
from .sinusoidal import RandomFourierPE, SinusoidalPE
from .tables import LearnablePE, RandomTablePE

__all__ = ['PEG', 'ContinuousRelativePE', 'FirePE', 'LearnablePE', 'LookHerePE', 'MixedRotaryPE', 'PositionEncoding',
           'PositionEncodings', 'RandomFourierPE', 'RandomTablePE', 'RelativePE', 'RotaryPE', 'SinusoidalPE',
           'StageSpec', 'build_position_encodings']
