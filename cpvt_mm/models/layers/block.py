"""The transformer block."""
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..grid import Grid
from ..position_encodings import PositionEncodings
from .attention import Attention
from .drop_path import DropPath


class MLP(nn.Sequential):
    """Linear, exact GELU, Linear.

    Args:
        embed_dims: Channels of a token.
        mlp_ratio: Width of the hidden layer in units of `embed_dims`.
        drop_rate: Dropout after either linear layer. Defaults to 0.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, mlp_ratio * embed_dims)
        self.act = nn.GELU()
        self.drop1 = nn.Dropout(drop_rate)
        self.fc2 = nn.Linear(mlp_ratio * embed_dims, embed_dims)
        self.drop2 = nn.Dropout(drop_rate)


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
        with_cp: Whether activations are recomputed in the backward pass. Defaults to False.
        eps: Of both LayerNorms. Defaults to 1e-6, as in the original.
    """

    def __init__(self, embed_dims: int, num_heads: int, mlp_ratio: int, sr_ratio: int = 1, drop_rate: float = 0.,
                 attn_drop_rate: float = 0., drop_path_rate: float = 0., with_cp: bool = False,
                 eps: float = 1e-6) -> None:
        super().__init__()
        self.with_cp = with_cp
        self.norm1 = nn.LayerNorm(embed_dims, eps=eps)
        self.attn = Attention(embed_dims, num_heads, sr_ratio, drop_rate, attn_drop_rate)
        self.norm2 = nn.LayerNorm(embed_dims, eps=eps)
        self.mlp = MLP(embed_dims, mlp_ratio, drop_rate)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: Tensor, position_encoding: PositionEncodings, index: int, grid: Grid | None = None) -> Tensor:
        """`(B, H, W, C)` -> `(B, H, W, C)`, or with `grid` `(B, E + H * W, C)` -> the same.

        Args:
            x: Tokens; a grid, or a sequence with E class tokens in front.
            position_encoding: That of the stage.
            index: Of this block in the stage.
            grid: That of the tokens where `x` is a sequence. Defaults to None.
        """
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(self._forward, x, position_encoding, index, grid, use_reentrant=False)
        return self._forward(x, position_encoding, index, grid)

    def _forward(self, x: Tensor, position_encoding: PositionEncodings, index: int, grid: Grid | None) -> Tensor:
        normed = self.norm1(x)
        encoded = position_encoding.qk_tokens(x, index, grid)
        qk = normed if encoded is x else self.norm1(encoded)
        x = x + self.drop_path(self.attn(normed, qk, position_encoding, index, grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))
