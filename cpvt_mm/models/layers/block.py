"""The transformer block."""
from typing import Literal

from torch import Tensor, nn

from ..grid import Grid
from ..position_encodings import PositionEncodings
from .attention import Attention
from .checkpointing import recomputed
from .drop_path import DropPath
from .mlp import MLPS


class Block(nn.Module):
    """Pre-norm attention and pre-norm MLP, each in a residual branch with drop path.

    Args:
        embed_dims: Channels of a token.
        num_heads: Heads; divides `embed_dims`.
        mlp_ratio: Width of the MLP in units of `embed_dims`.
        sr_ratio: Reduction of the key grid per side. Defaults to 1.
        drop_rate: Dropout after projections. Defaults to 0.
        attn_drop_rate: Dropout of attention weights. Defaults to 0.
        drop_path_rate: Stochastic depth of this block. Defaults to 0.
        norm_eps: The eps of both LayerNorms. Defaults to 1e-6, as in the original.
        sr_mode: 'conv' or 'pool', see `Attention`. Defaults to 'conv'.
        mlp_mode: 'linear' for `MLP`, 'conv' for `ConvMLP`. Defaults to 'linear'.
        recompute_mlp: Whether the backward pass recomputes the MLP, so that its hidden activations are not stored.
            Defaults to False.
    """

    def __init__(self, embed_dims: int, num_heads: int, mlp_ratio: int, sr_ratio: int = 1, drop_rate: float = 0.,
                 attn_drop_rate: float = 0., drop_path_rate: float = 0., norm_eps: float = 1e-6,
                 sr_mode: Literal['conv', 'pool'] = 'conv', mlp_mode: Literal['linear', 'conv'] = 'linear',
                 recompute_mlp: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dims, eps=norm_eps)
        self.attn = Attention(embed_dims, num_heads, sr_ratio, drop_rate, attn_drop_rate, sr_mode)
        self.norm2 = nn.LayerNorm(embed_dims, eps=norm_eps)
        self.mlp = MLPS[mlp_mode](embed_dims, mlp_ratio, drop_rate)
        self.drop_path = DropPath(drop_path_rate)
        self.recompute_mlp = recompute_mlp

    def forward(self, x: Tensor, position_encoding: PositionEncodings, index: int, grid: Grid | None = None,
                num_frames: int = 1) -> Tensor:
        """`(B, H, W, C)` -> `(B, H, W, C)`, or with `grid` `(B, E + H * W, C)` -> the same.

        Args:
            x: Tokens: a grid, or a sequence that starts with E class tokens.
            position_encoding: The encodings of the stage.
            index: Index of this block in the stage.
            grid: The grid of the tokens if `x` is a sequence. Defaults to None: `x` is the grid.
            num_frames: Frames of each clip; the images of a clip are consecutive. Defaults to 1.
        """
        encoded = position_encoding.qk_tokens(x, index, grid, num_frames)
        qk = None if encoded is x else self.norm1(encoded)
        x = x + self.drop_path(self.attn(self.norm1(x), position_encoding, index, grid, qk))
        x = x + self.drop_path(recomputed(self.mlp, self.recompute_mlp, self.norm2(x)))
        return x
