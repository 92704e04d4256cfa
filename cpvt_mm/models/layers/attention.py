"""Multi-head attention over a token grid, keys and values on a coarser one or on the same."""
from typing import Literal, NamedTuple

from torch import Tensor, nn

from ..grid import Grid
from ..position_encodings import PositionEncodings
from .attend import attend
from .linear import Linear, linear
from .linear_sra import LinearSRA
from .patch_embed import PatchEmbed


class Projected(NamedTuple):
    """What attention works on, E class tokens in front of either grid.

    Attributes:
        q: Queries, `(B, heads, E + H * W, C / heads)`.
        k: Keys, `(B, heads, E + H' * W', C / heads)`.
        v: Values, of the shape of `k`.
        bias: Added to the logits; broadcastable to `(B, heads, E + H * W, E + H' * W')`, or None.
        grid: Of the queries.
        key_grid: Of keys and values.
    """
    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    grid: Grid
    key_grid: Grid

    def weights(self) -> Tensor:
        """Attention of each query to each key, to look at: `(B, heads, E + H * W, E + H' * W')`; sums to 1."""
        logits = self.q @ self.k.mT * self.q.shape[-1]**-0.5
        return (logits if self.bias is None else logits + self.bias).softmax(dim=-1)


class Attention(nn.Module):
    """Attention whose keys and values may come from a reduced grid (PVT, arXiv 2102.12122, section 3.3).

    Queries times keys are never held in memory (see `attend`), except with `attn_drop_rate > 0` on the CPU, or with a
    position encoding that adds a bias to the logits and learns it.

    Args:
        embed_dims: Channels of a token.
        num_heads: Heads; divides `embed_dims`.
        sr_ratio: Reduction of the key grid per side. Defaults to 1: none.
        drop_rate: Dropout after the output projection. Defaults to 0.
        attn_drop_rate: Dropout of attention weights. Defaults to 0.
        sr_mode: How the key grid is reduced: 'conv', by `sr_ratio`, or 'pool', to 7 x 7 cells. Defaults to 'conv'.
    """

    def __init__(self, embed_dims: int, num_heads: int, sr_ratio: int = 1, drop_rate: float = 0.,
                 attn_drop_rate: float = 0., sr_mode: Literal['conv', 'pool'] = 'conv') -> None:
        super().__init__()
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.attn_drop_rate = attn_drop_rate
        self.q = Linear(embed_dims, embed_dims)
        self.kv = Linear(embed_dims, 2 * embed_dims)
        if sr_mode == 'pool':
            self.sr = LinearSRA(embed_dims)
        else:
            self.sr = PatchEmbed(embed_dims, embed_dims, sr_ratio) if sr_ratio > 1 else nn.Identity()
        self.proj = Linear(embed_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def project(self, x: Tensor, qk: Tensor, position_encoding: PositionEncodings, index: int,
                grid: Grid | None = None) -> Projected:
        """Makes queries, keys and values.

        Args:
            x: Tokens, `(B, H, W, C)`, or with `grid` `(B, E + H * W, C)`; E class tokens need an `sr_ratio` of 1.
            qk: The tokens that queries and keys are made of, most often `x` itself.
            position_encoding: That of the stage.
            index: Of the block.
            grid: That of the tokens where `x` is a sequence. Defaults to None: `x` is the grid.
        """
        reduced = self.sr(x)
        if qk is x:
            k, v = self.kv(reduced).chunk(2, dim=-1)
        else:
            (k_weight, v_weight), (k_bias, v_bias) = self.kv.weight.chunk(2), self.kv.bias.chunk(2)
            k, v = linear(self.sr(qk), k_weight, k_bias), linear(reduced, v_weight, v_bias)
        grid = grid or Grid(*x.shape[1:3])
        key_grid = self._key_grid(grid, reduced)
        q, k, v = map(self._split_heads, (self.q(qk), k, v))
        q, k = position_encoding.encode_qk(q, grid), position_encoding.encode_qk(k, key_grid)
        return Projected(q, k, v, position_encoding.attention_bias(q, index, grid, key_grid), grid, key_grid)

    def forward(self, projected: Projected) -> Tensor:
        """What `project` makes -> `(B, E + H * W, C)`."""
        q, k, v, bias = projected[:4]
        out = attend(q, k, v, bias, self.attn_drop_rate if self.training else 0.)
        return self.drop(self.proj(out.transpose(1, 2).flatten(2)))

    def _key_grid(self, grid: Grid, reduced: Tensor) -> Grid:
        """That of the reduced tokens, placed in the grid of the queries."""
        if isinstance(self.sr, nn.Identity):
            return grid
        height, width = reduced.shape[1:3]
        if isinstance(self.sr, LinearSRA):
            return Grid(height, width, grid.height / height, grid.width / width)
        return Grid(height, width, self.sr_ratio, self.sr_ratio)

    def _split_heads(self, x: Tensor) -> Tensor:
        """`(B, ..., C)` -> `(B, heads, tokens, C / heads)`, a view."""
        return x.flatten(1, -2).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
