"""All position encodings; importing them registers them."""
from .base import PositionEncoding, StageSpec
from .biases import ContinuousRelativePE, FirePE, RelativePE
from .look_here import LookHerePE
from .parabolic import ParabolicPE
from .peg import PEG
from .rotary import MixedRotaryPE, RotaryPE
from .tables import LearnablePE, RandomFourierPE, RandomTablePE, SinusoidalPE

__all__ = ['PEG', 'ContinuousRelativePE', 'FirePE', 'LearnablePE', 'LookHerePE', 'MixedRotaryPE', 'ParabolicPE',
           'PositionEncoding', 'RandomFourierPE', 'RandomTablePE', 'RelativePE', 'RotaryPE', 'SinusoidalPE',
           'StageSpec']
