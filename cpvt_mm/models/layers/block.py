"""The transformer block."""
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..grid import Grid
from ..position_encodings import PositionEncodings
from .attention import Attention, Projected
from .bands import lean_linear
from .drop_path import DropPath
from .linear import Linear, linear, on_cpu
from .recompute import Result, recomputed


class MLP(nn.Module):
    """Linear, exact GELU, linear, with the LayerNorm before them.

    Args:
        embed_dims: Channels of a token.
        mlp_ratio: Width of the hidden layer in units of `embed_dims`.
        drop_rate: Dropout after either linear layer. Defaults to 0.
    """

    def __init__(self, embed_dims: int, mlp_ratio: int, drop_rate: float = 0.) -> None:
        super().__init__()
        self.fc1 = Linear(embed_dims, mlp_ratio * embed_dims)
        self.fc2 = Linear(mlp_ratio * embed_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, norm: nn.LayerNorm, recompute: bool) -> Tensor:
        """`(..., C)` -> `(..., C)`.

        Args:
            x: Tokens.
            norm: Applied to them first.
            recompute: Whether the backward pass computes norm and hidden layer again, instead of keeping them.
        """
        if not on_cpu(x) or not self._is_plain(norm):
            return recomputed(self._forward, x, norm) if recompute else self._forward(x, norm)
        if torch.is_grad_enabled() and not recompute:
            return lean_linear(F.gelu, self.fc1(norm(x)), self.fc2.weight, self.fc2.bias)
        return lean_linear(partial(_expand, eps=norm.eps), x, self.fc2.weight, self.fc2.bias, norm.weight, norm.bias,
                           self.fc1.weight, self.fc1.bias)

    def _forward(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(norm(x))))))

    def _is_plain(self, norm: nn.LayerNorm) -> bool:
        """Whether nobody has replaced or hooked a layer, so that its weights are all there is to it; nor drops any."""
        layers = ((norm, nn.LayerNorm), (self.fc1, Linear), (self.fc2, Linear))
        return not (self.training and self.drop.p) and all(
            type(layer) is cls and not layer._forward_hooks and not layer._forward_pre_hooks for layer, cls in layers)


def _expand(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Norm, first layer and activation: `(..., C)` -> `(..., mlp_ratio * C)`."""
    return F.gelu(linear(F.layer_norm(x, x.shape[-1:], norm_weight, norm_bias, eps), weight, bias))


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
        with_cp: What the backward pass computes again to save memory. False: nothing, but GELUs on a CPU; 'selective':
            all but attention and the projection after it; True: all. Defaults to False.
        eps: Of both LayerNorms. Defaults to 1e-6, as in the original.
        sr_mode: As of `Attention`. Defaults to 'conv'.
    """

    def __init__(self, embed_dims: int, num_heads: int, mlp_ratio: int, sr_ratio: int = 1, drop_rate: float = 0.,
                 attn_drop_rate: float = 0., drop_path_rate: float = 0., with_cp: bool | Literal['selective'] = False,
                 eps: float = 1e-6, sr_mode: Literal['conv', 'pool'] = 'conv') -> None:
        super().__init__()
        self.with_cp = with_cp
        self.norm1 = nn.LayerNorm(embed_dims, eps=eps)
        self.attn = Attention(embed_dims, num_heads, sr_ratio, drop_rate, attn_drop_rate, sr_mode)
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
        attention = self._recomputed(True, self._attention, x, position_encoding, index, grid)
        x = x + self.drop_path(attention.reshape(x.shape))
        return x + self.drop_path(self.mlp(x, self.norm2, recompute=bool(self.with_cp)))

    def _attention(self, x: Tensor, *place: Any) -> Tensor:
        return self.attn(self._recomputed('selective', self._project, x, *place))

    def _project(self, x: Tensor, position_encoding: PositionEncodings, index: int, grid: Grid | None) -> Projected:
        normed = self.norm1(x)
        encoded = position_encoding.qk_tokens(x, index, grid)
        qk = normed if encoded is x else self.norm1(encoded)
        return self.attn.project(normed, qk, position_encoding, index, grid)

    def _recomputed(self, with_cp: bool | str, function: Callable[..., Result], *args: Any) -> Result:
        """`function(*args)`, recomputed in the backward pass if the block's `with_cp` is this one."""
        return recomputed(function, *args) if self.with_cp == with_cp else function(*args)
