from .base import PositionEncoding, PositionEncodings, StageSpec
from .biases import ContinuousRelativePE, FirePE, LookHerePE, RelativePE
from .building import build_position_encodings
from .parabolic import ParabolicPE
from .peg import PEG
from .rotary import MixedRotaryPE, RotaryPE
from .sinusoidal import RandomFourierPE, SinusoidalPE
from .tables import LearnablePE, RandomTablePE

__all__ = ['PEG', 'ContinuousRelativePE', 'FirePE', 'LearnablePE', 'LookHerePE', 'MixedRotaryPE', 'ParabolicPE',
           'PositionEncoding', 'PositionEncodings', 'RandomFourierPE', 'RandomTablePE', 'RelativePE', 'RotaryPE',
           'SinusoidalPE', 'StageSpec', 'build_position_encodings']
