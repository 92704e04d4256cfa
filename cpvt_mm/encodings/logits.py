"""The encoding of queries, keys and logits: encodings change both, and add biases or factors of biases.

Factors become channels of queries and keys, as exact in half precision as in float32.
"""
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm.tokens.grid import Grid, after_extra
from cpvt_mm.tokens.packing import Layout

# The bits of a float32 that a dtype holds, too.
EXACT_BITS = {torch.bfloat16: -1 << 16, torch.float16: -1 << 13}


def as_channels(of_queries: Tensor, of_keys: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns channels whose products in a dtype equal the products of two factors: R, or 3 R in half precision."""
    if dtype not in EXACT_BITS:
        return of_queries, of_keys
    (high, low), (key_high, key_low) = split(of_queries, dtype), split(of_keys, dtype)
    return torch.cat([high, low, high], -1), torch.cat([key_high, key_high, key_low], -1)


def split(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Splits float32 numbers into what a dtype of half precision holds exactly, and the rest.

    Bits are cut off, because a compiler leaves out the rounding of numbers that are converted there and back.
    """
    numbers = x.detach()
    rest = numbers - (numbers.view(torch.int32) & EXACT_BITS[dtype]).view(torch.float32)
    return x - rest, rest


def beside(x: Tensor, factors: Tensor, grid: Grid) -> Tensor:
    """Appends channels to queries or keys: factors of the cells, and zeros up to a multiple of 8 channels."""
    zeros = -(x.shape[-1] + factors.shape[-1]) % 8
    padded = F.pad(factors.to(x.dtype), (0, zeros, grid.extra, 0))
    return torch.cat([x, padded.expand(*x.shape[:2], -1, -1)], dim=-1)


def encode_logits(acting: Mapping[str, Sequence[Any]], q: Tensor, k: Tensor, v: Tensor, index: int, grid: Layout,
                  key_grid: Layout) -> tuple[Tensor, Tensor, Tensor, list[Tensor | None] | None]:
    """Does what `PositionEncodings.attention` describes, with the encodings that act at each point."""
    groups = zip(grid.split(q, 2), key_grid.split(k, 2), grid.grids, key_grid.grids, strict=True)
    encoded_q, encoded_k, biases = zip(*(_of_group(acting, *group, index) for group in groups), strict=True)
    q, k = grid.join(encoded_q, 2), key_grid.join(encoded_k, 2)
    if wider := q.shape[-1] - v.shape[-1]:
        v = F.pad(v, (0, wider))
    return q, k, v, None if all(bias is None for bias in biases) else list(biases)


def _of_group(acting: Mapping[str, Sequence[Any]], q: Tensor, k: Tensor, grid: Grid, key_grid: Grid, index: int
              ) -> tuple[Tensor, Tensor, Tensor | None]:
    """Encodes images of one size; returns queries, keys and the sum of the biases."""
    cells, key_cells = q[:, :, grid.extra:], k[:, :, key_grid.extra:]
    for encoding in acting['qk']:
        cells, key_cells = encoding.qk(cells, key_cells, index, grid, key_grid)
    if acting['qk']:
        q, k = after_extra(q, cells, grid.extra, 2), after_extra(k, key_cells, key_grid.extra, 2)
    biases = [encoding.bias(cells, index, grid, key_grid) for encoding in acting['bias']]
    root = q.shape[-1]**0.5  # attention divides all products by it
    for encoding in acting['factors']:
        factors = encoding.factors(cells, index, grid, key_grid)
        if factors is not None:
            of_q, of_k = as_channels(factors[0] * root, factors[1], q.dtype)
            q, k = beside(q, of_q, grid), beside(k, of_k, key_grid)
    biases = [bias for bias in biases if bias is not None]
    return q, k, _for_all_tokens(sum(biases[1:], start=biases[0]), q, grid) if biases else None


def _for_all_tokens(bias: Tensor, q: Tensor, grid: Grid) -> Tensor:
    """Returns a bias of cells with zeros for the extra tokens, in the dtype of `q`."""
    padded = F.pad(bias.to(q.dtype), (grid.extra, 0, grid.extra, 0)) if grid.extra else bias.to(q.dtype)
    return padded.expand(*q.shape[:2], -1, -1)  # exported code must not ask whether the batch has one image
