"""Keys and values from a grid of fixed size."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..grid import is_traced, to_nchw, to_nhwc
from .linear import Linear

POOL_SIZE = 7


def average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """What `F.adaptive_avg_pool2d` computes, as products with matrices, so that sides and `size` may be symbols.

    `(..., H, W)` -> `(..., *size)`.
    """
    rows, columns = (_shares(length, parts, x) for length, parts in zip(x.shape[-2:], size, strict=True))
    return rows @ x @ columns.mT


def _shares(length: int, parts: int, like: Tensor) -> Tensor:
    """What each of `length` cells contributes to the mean of each part: `(parts, length)`."""
    part = torch.arange(parts, device=like.device)[:, None]
    cell = torch.arange(length, device=like.device)
    start, stop = part * length // parts, ((part + 1) * length + parts - 1) // parts
    inside = (cell >= start) & (cell < stop)
    return inside.to(like.dtype) / (stop - start)


class LinearSRA(nn.Module):
    """Mean over 7 x 7 parts of the grid, linear, LayerNorm, GELU (PVT v2, arXiv 2106.13797, section 3.2, "linear SRA").

    Parts share a row or column where the grid's sides are no multiples of 7; a side of fewer cells stays as it is.

    Args:
        embed_dims: Channels of a token.
        eps: Of the LayerNorm. Defaults to 1e-5.
    """

    def __init__(self, embed_dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.proj = Linear(embed_dims, embed_dims)
        self.norm = nn.LayerNorm(embed_dims, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, H, W, C)` -> `(B, min(H, 7), min(W, 7), C)`."""
        size = tuple(min(side, POOL_SIZE) for side in x.shape[1:3])
        # Torch's own cannot be exported to sizes that are not known.
        pool = average_pool if is_traced() else F.adaptive_avg_pool2d
        return F.gelu(self.norm(self.proj(to_nhwc(pool(to_nchw(x), size)))))
