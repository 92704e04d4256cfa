"""All position encodings; importing them registers them."""
from .base import PositionEncoding, StageSpec
from .look_here import LookHerePE
from .offset_networks import ContinuousRelativePE, FirePE
from .parabolic import ParabolicPE
from .peg import PEG
from .relative import RelativePE
from .rotary import MixedRotaryPE, RotaryPE
from .tables import LearnablePE, RandomFourierPE, RandomTablePE, SinusoidalPE

__all__ = ['PEG', 'ContinuousRelativePE', 'FirePE', 'LearnablePE', 'LookHerePE', 'MixedRotaryPE', 'ParabolicPE',
           'PositionEncoding', 'RandomFourierPE', 'RandomTablePE', 'RelativePE', 'RotaryPE', 'SinusoidalPE',
           'StageSpec']
