"""Factors of a bias as channels of queries and keys, as exact in half precision as in float32."""
import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm.tokens.grid import Grid

# The bits of a float32 that a dtype holds, too.
KEPT_BITS = {torch.bfloat16: -1 << 16, torch.float16: -1 << 13}


def as_channels(of_queries: Tensor, of_keys: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Returns the channels whose products in a dtype are those of two factors: R, or 3 R in half precision."""
    if dtype not in KEPT_BITS:
        return of_queries, of_keys
    (high, low), (key_high, key_low) = split(of_queries, dtype), split(of_keys, dtype)
    return torch.cat([high, low, high], -1), torch.cat([key_high, key_high, key_low], -1)


def split(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Splits float32 numbers into what a dtype of half precision holds exactly, and the rest.

    Bits are cut off, because a compiler leaves out the rounding of numbers that are converted there and back.
    """
    numbers = x.detach()
    rest = numbers - (numbers.view(torch.int32) & KEPT_BITS[dtype]).view(torch.float32)
    return x - rest, rest


def beside(x: Tensor, factors: Tensor, grid: Grid) -> Tensor:
    """Appends channels to queries or keys: factors of the cells, and zeros up to a multiple of 8 channels."""
    zeros = -(x.shape[-1] + factors.shape[-1]) % 8
    padded = F.pad(factors.to(x.dtype), (0, zeros, grid.extra, 0))
    return torch.cat([x, padded.expand(*x.shape[:2], -1, -1)], dim=-1)
