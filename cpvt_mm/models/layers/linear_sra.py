"""Keys and values from a grid of fixed size."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

POOL_SIZE = 7


def average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Means over parts of a grid, as `F.adaptive_avg_pool2d` has them: `(B, H, W, C)` -> `(B, *size, C)`.

    Two products with matrices. They can be exported for sides that are not known, and their gradient is deterministic
    on a GPU; neither holds for torch's own.
    """
    rows, columns = (_shares(length, parts, x) for length, parts in zip(x.shape[1:3], size, strict=True))
    return torch.einsum('qw,bpwc->bpqc', columns, torch.einsum('ph,bhwc->bpwc', rows, x))


def _shares(length: int, parts: int, like: Tensor) -> Tensor:
    """The share of each of `length` cells in the mean of each part: `(parts, length)`."""
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
        eps: The eps of the LayerNorm. Defaults to 1e-5.
    """

    def __init__(self, embed_dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.norm = nn.LayerNorm(embed_dims, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, H, W, C)` -> `(B, min(H, 7), min(W, 7), C)`."""
        height, width = x.shape[1:3]
        pooled = average_pool(x, (min(height, POOL_SIZE), min(width, POOL_SIZE)))
        return F.gelu(self.norm(self.proj(pooled)))
