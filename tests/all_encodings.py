"""A config of each kind of position encoding, for tests that try them all; and how a test calls one."""
from typing import Any

from torch import Tensor

from cpvt_mm.encodings.base import PositionEncoding, PositionEncodings, StageSpec
from cpvt_mm.tokens.grid import Grid

ENCODINGS: dict[str, dict[str, Any] | list[dict[str, Any]] | None] = {
    'none': None, 'learnable-1d': dict(type='LearnablePE', ndim=1), 'learnable-2d': dict(type='LearnablePE'),
    'learnable-antialiased': dict(type='LearnablePE', antialias=True),
    'learnable-offset': dict(type='LearnablePE', offset=0.1),
    'sinusoidal-1d': dict(type='SinusoidalPE', ndim=1), 'sinusoidal-2d': dict(type='SinusoidalPE'),
    'random-table': dict(type='RandomTablePE'), 'random-fourier': dict(type='RandomFourierPE'),
    'rotary': dict(type='RotaryPE'), 'rotary-dinov3': dict(type='RotaryPE', form='dinov3'),
    'rotary-mixed': dict(type='MixedRotaryPE'), 'relative': dict(type='RelativePE'),
    'continuous-relative': dict(type='ContinuousRelativePE', hidden_dims=16), 'fire': dict(type='FirePE'),
    'look-here': dict(type='LookHerePE'), 'parabolic': dict(type='ParabolicPE'),
    'parabolic-fixed': dict(type='ParabolicPE', trainable=False), 'peg': dict(type='PEG'),
    'peg-first': dict(type='PEG', positions=(-1, 0)), 'peg-qk': dict(type='PEG', target='qk'),
    'peg-fixed': dict(type='PEG', trainable=False), 'peg-3d': dict(type='PEG', ndim=3),
    'peg-zero': dict(type='PEG', init='zero'), 'peg-separable': dict(type='PEG', conv_type='separable'),
    'peg-replicate': dict(type='PEG', padding='replicate'), 'peg-circular': dict(type='PEG', padding='circular'),
    'peg-learnable': [dict(type='PEG'), dict(type='LearnablePE')]}

# One for each point of the contract (see `PositionEncoding`): at the entry, after a block, tokens of queries and keys,
# queries and keys themselves, a bias, its factors; and a list of two.
ONE_FOR_EACH_POINT = {name: ENCODINGS[name] for name in ('learnable-2d', 'peg', 'peg-qk', 'rotary-dinov3', 'relative',
                                                         'parabolic', 'peg-learnable')}

# Biases for all pairs of query and key, and those of them that are learnt.
LEARNT_BIASES = ('relative', 'continuous-relative', 'fire')
BIASES = (*LEARNT_BIASES, 'look-here')

# A stage to build encodings for.
STAGE = StageSpec(embed_dims=16, num_heads=2, depth=3, grid=(4, 6))


def encode(encoding: PositionEncoding | PositionEncodings, x: Tensor, position: int, frames: int = 1,
           point: str = 'tokens') -> Tensor:
    """Encodes the tokens of a grid `(B, H, W, C)`, or of clips `(N, T, H, W, C)`; returns `x` if they are unchanged."""
    frames = x.shape[1] if x.dim() == 5 else frames
    height, width = x.shape[-3:-1]
    tokens = x.flatten(0, -4).flatten(1, 2)
    out = getattr(encoding, point)(tokens, position, Grid(height, width, frames=frames))
    return x if out is tokens else out.view_as(x)
