"""Multi-head attention over a token grid, with keys and values on the same grid or on a coarser one."""
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.encodings import PositionEncodings
from cpvt_mm.models.grid import Grid, to_map, to_nhwc

from .patch_embed import PatchEmbed

POOL_SIZE = 7


class Projected(NamedTuple):
    """The inputs of attention. E extra tokens precede the cells of each grid.

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
    On a CPU there is no fused kernel for a learnt bias, or for dropout. Fused kernels have no second derivative: to
    compute one, run inside `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`.

    Args:
        index: Index of the block in the stage, for the position encodings.
        embed_dims: Channels of a token.
        num_heads: Number of heads; must divide `embed_dims`.
        sr_ratio: Factor by which spatial reduction shrinks each side of the key grid. Defaults to 1: no reduction.
        drop_rate: Dropout after the output projection. Defaults to 0.
        attn_drop_rate: Dropout of attention weights. Defaults to 0.
        sr_mode: Reduction of the key grid: 'conv', by `sr_ratio`, or 'pool', to 7 x 7 cells. Defaults to 'conv'.
    """

    def __init__(self, index: int, embed_dims: int, num_heads: int, sr_ratio: int = 1, drop_rate: float = 0.,
                 attn_drop_rate: float = 0., sr_mode: Literal['conv', 'pool'] = 'conv') -> None:
        super().__init__()
        self.index = index
        self.num_heads = num_heads
        self.sr_ratio = sr_ratio
        self.attn_drop_rate = attn_drop_rate
        self.q = nn.Linear(embed_dims, embed_dims)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims)
        self.sr: PatchEmbed | LinearSRA | None = None
        if sr_mode == 'pool':
            self.sr = LinearSRA(embed_dims)
        elif sr_ratio > 1:
            self.sr = PatchEmbed(embed_dims, embed_dims, sr_ratio)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, grid: Grid, encodings: PositionEncodings, qk: Tensor | None = None) -> Tensor:
        """Applies attention to tokens.

        Args:
            x: `(B, E + H * W, C)`. With spatial reduction, E is 0.
            grid: The grid of the tokens.
            encodings: The position encodings of the stage.
            qk: The tokens for queries and keys, in the shape of `x`. Defaults to None: `x`.

        Returns:
            A tensor of the shape of `x`.
        """
        q, k, v, bias, *_ = self.project(x, grid, encodings, qk)
        drop_rate = self.attn_drop_rate if self.training else 0.
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop_rate)
        return self.drop(self.proj(out.transpose(1, 2).flatten(2)))

    def project(self, x: Tensor, grid: Grid, encodings: PositionEncodings, qk: Tensor | None = None) -> Projected:
        """Computes queries, keys, values and bias. See `forward` for the arguments."""
        reduced, key_grid = self._reduce(x, grid)
        k, v = self.kv(reduced).chunk(2, dim=-1)
        if qk is not None:
            k, _ = self.kv(self._reduce(qk, grid)[0]).chunk(2, dim=-1)
        q, k, v = map(self._split_heads, (self.q(x if qk is None else qk), k, v))
        q, k = encodings.qk(q, k, self.index, grid, key_grid)
        return Projected(q, k, v, encodings.bias(q, self.index, grid, key_grid), grid, key_grid)

    def weights(self, projected: Projected) -> Tensor:
        """Returns the attention weights, `(B, heads, E + H * W, E + H' * W')`; each query's weights sum to 1."""
        logits = projected.q @ projected.k.mT * projected.q.shape[-1]**-0.5
        return (logits if projected.bias is None else logits + projected.bias).softmax(dim=-1)

    def _reduce(self, x: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        return (x, grid) if self.sr is None else self.sr(to_map(x, grid))

    def _split_heads(self, x: Tensor) -> Tensor:
        """Returns a view `(B, N, C)` -> `(B, heads, N, C / heads)`."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class LinearSRA(nn.Module):
    """Average pooling to 7 x 7, a linear layer, LayerNorm, GELU (linear SRA of PVT v2, arXiv 2106.13797, section 3.2).

    If a side is not a multiple of 7, neighbouring parts overlap by a row or column. A side of less than 7 cells is not
    pooled. The eps of the LayerNorm defaults to 1e-5.
    """

    def __init__(self, embed_dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.norm = nn.LayerNorm(embed_dims, eps=eps)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Reduces a map.

        Args:
            x: `(B, C, H, W)`.

        Returns:
            Tokens `(B, h * w, C)` and their grid: h and w are `min(H, 7)` and `min(W, 7)`. The cell size is the
            quotient, possibly a fraction.
        """
        height, width = x.shape[2:]
        rows, columns = min(height, POOL_SIZE), min(width, POOL_SIZE)
        pooled = average_pool(to_nhwc(x), (rows, columns)).flatten(1, 2)
        return F.gelu(self.norm(self.proj(pooled))), Grid(rows, columns, height / rows, width / columns)


def average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Averages parts of a grid, like `F.adaptive_avg_pool2d`: `(B, H, W, C)` -> `(B, *size, C)`.

    It computes two matrix products. In contrast to `F.adaptive_avg_pool2d`, these can be exported with dynamic sizes,
    and their gradient is deterministic on a GPU.
    """
    rows, columns = (_shares(length, parts, x) for length, parts in zip(x.shape[1:3], size, strict=True))
    return torch.einsum('qw,bpwc->bpqc', columns, torch.einsum('ph,bhwc->bpwc', rows, x))


def _shares(length: int, parts: int, like: Tensor) -> Tensor:
    """Returns the weight of each of `length` cells in the mean of each part: `(parts, length)`."""
    part = torch.arange(parts, device=like.device)[:, None]
    cell = torch.arange(length, device=like.device)
    start, stop = part * length // parts, ((part + 1) * length + parts - 1) // parts
    inside = (cell >= start) & (cell < stop)
    return inside.to(like.dtype) / (stop - start)
