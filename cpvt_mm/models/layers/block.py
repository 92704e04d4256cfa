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
    """A transformer block: pre-norm attention and a pre-norm MLP, each in a residual branch with drop path.

    Args:
        embed_dims: Channels of a token.
        num_heads: Number of heads; must divide `embed_dims`.
        mlp_ratio: Hidden channels of the MLP, as a multiple of `embed_dims`.
        sr_ratio: Factor by which spatial reduction shrinks each side of the key grid. Defaults to 1: no reduction.
        drop_rate: Dropout after projections. Defaults to 0.
        attn_drop_rate: Dropout of attention weights. Defaults to 0.
        drop_path_rate: Stochastic depth rate of this block. Defaults to 0.
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
        """Applies the block to tokens.

        Args:
            x: A grid `(B, H, W, C)`; or, with `grid`, a sequence `(B, E + H * W, C)` that starts with E class tokens.
            position_encoding: The encodings of the stage.
            index: Index of this block in the stage.
            grid: The grid of the tokens if `x` is a sequence. Defaults to None: `x` is the grid.
            num_frames: Frames of each clip; the frames of a clip are consecutive images. Defaults to 1.

        Returns:
            A tensor of the shape of `x`.
        """
        encoded = position_encoding.qk_tokens(x, index, grid, num_frames)
        qk = None if encoded is x else self.norm1(encoded)
        x = x + self.drop_path(self.attn(self.norm1(x), position_encoding, index, grid, qk))
        x = x + self.drop_path(recomputed(self.mlp, self.recompute_mlp, self.norm2(x)))
        return x
