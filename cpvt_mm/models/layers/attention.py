"""Multi-head attention over a token grid, with keys and values on the same grid or on a coarser one."""
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from ..grid import Grid
from ..position_encodings import PositionEncodings
from .linear_sra import LinearSRA
from .patch_embed import PatchEmbed


class Projected(NamedTuple):
    """The inputs of attention. E class tokens precede the tokens of each grid.

    Attributes:
        q: Queries, `(B, heads, E + H * W, C / heads)`.
        k: Keys, `(B, heads, E + H' * W', C / heads)`.
        v: Values, of the shape of `k`.
        bias: Added to the logits; broadcastable to `(B, heads, E + H * W, E + H' * W')`, or None.
        grid: The grid of the queries.
        key_grid: The grid of keys and values.
    """
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    grid: Grid
    key_grid: Grid


class Attention(nn.Module):
    """Spatial-reduction attention: keys and values come from a reduced grid (PVT, arXiv 2102.12122, section 3.3).

    It uses `torch.nn.functional.scaled_dot_product_attention`, whose fused kernels do not store the attention weights.
    There is no fused kernel for a learnt bias, or for dropout on a CPU. Fused kernels have no second derivative: to
    compute one, run inside `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`.

    Args:
        embed_dims: Channels of a token.
        num_heads: Number of heads; must divide `embed_dims`.
        sr_ratio: Factor by which spatial reduction shrinks each side of the key grid. Defaults to 1: no reduction.
        drop_rate: Dropout after the output projection. Defaults to 0.
        attn_drop_rate: Dropout of attention weights. Defaults to 0.
        sr_mode: Reduction of the key grid: 'conv', by `sr_ratio`, or 'pool', to 7 x 7 cells. Defaults to 'conv'.
    """

    def __init__(self, embed_dims: int, num_heads: int, sr_ratio: int = 1, drop_rate: float = 0.,
                 attn_drop_rate: float = 0., sr_mode: Literal['conv', 'pool'] = 'conv') -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.attn_drop_rate = attn_drop_rate
        self.q = nn.Linear(embed_dims, embed_dims)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims)
        self.sr: nn.Module
        if sr_mode == 'pool':
            self.sr = LinearSRA(embed_dims)
        else:
            self.sr = PatchEmbed(embed_dims, embed_dims, sr_ratio) if sr_ratio > 1 else nn.Identity()
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, position_encoding: PositionEncodings, index: int, grid: Grid | None = None,
                qk: Tensor | None = None) -> Tensor:
        """Applies attention to tokens.

        Args:
            x: A grid `(B, H, W, C)`; or, with `grid`, a sequence `(B, E + H * W, C)` that starts with E class tokens. A
                sequence needs an `sr_ratio` of 1.
            position_encoding: The encodings of the stage.
            index: Index of the block in the stage.
            grid: The grid of the tokens if `x` is a sequence. Defaults to None: `x` is the grid.
            qk: The tokens for queries and keys, in the shape of `x`. Defaults to None: `x`.

        Returns:
            A tensor of the shape of `x`.
        """
        projected = self.project(x, position_encoding, index, grid, qk)
        drop_rate = self.attn_drop_rate if self.training else 0.
        out = F.scaled_dot_product_attention(*projected[:3], attn_mask=projected.bias, dropout_p=drop_rate)
        return self.drop(self.proj(out.transpose(1, 2).reshape(x.shape)))

    def weights(self, projected: Projected) -> Tensor:
        """Returns the attention weights, `(B, heads, E + H * W, E + H' * W')`; each query's weights sum to 1."""
        logits = projected.q @ projected.k.mT * projected.q.shape[-1]**-0.5
        return (logits if projected.bias is None else logits + projected.bias).softmax(dim=-1)

    def project(self, x: Tensor, position_encoding: PositionEncodings, index: int, grid: Grid | None = None,
                qk: Tensor | None = None) -> Projected:
        """Computes queries, keys, values and bias. See `forward` for the arguments."""
        reduced = self.sr(x)
        k, v = self.kv(reduced).chunk(2, dim=-1)
        if qk is not None:
            k, _ = self.kv(self.sr(qk)).chunk(2, dim=-1)
        grid = grid or Grid(*x.shape[1:3])
        key_grid = self._key_grid(grid, reduced)
        q, k, v = map(self._split_heads, (self.q(x if qk is None else qk), k, v))
        q, k = position_encoding.encode_qk(q, grid), position_encoding.encode_qk(k, key_grid)
        return Projected(q, k, v, position_encoding.attention_bias(q, index, grid, key_grid), grid, key_grid)

    def _key_grid(self, grid: Grid, reduced: Tensor) -> Grid:
        """Returns the grid of the reduced tokens, with its cell size in query tokens."""
        if isinstance(self.sr, nn.Identity):
            return grid
        height, width = reduced.shape[1:3]
        if isinstance(self.sr, LinearSRA):
            return Grid(height, width, grid.height / height, grid.width / width)
        return Grid(height, width, self.sr_ratio, self.sr_ratio)

    def _split_heads(self, x: Tensor) -> Tensor:
        """Returns a view `(B, ..., C)` -> `(B, heads, tokens, C / heads)`."""
        return x.flatten(1, -2).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
