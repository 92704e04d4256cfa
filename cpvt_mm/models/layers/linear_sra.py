"""Spatial reduction of keys and values to a grid of fixed size."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

POOL_SIZE = 7


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


class LinearSRA(nn.Module):
    """Average pooling to 7 x 7, a linear layer, LayerNorm, GELU (linear SRA of PVT v2, arXiv 2106.13797, section 3.2).

    If a side is not a multiple of 7, neighbouring parts overlap by a row or column. A side of less than 7 cells is not
    pooled.

    Args:
        embed_dims: Channels of a token.
        eps: The eps of the LayerNorm. Defaults to 1e-5.
    """

    def __init__(self, embed_dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.norm = nn.LayerNorm(embed_dims, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Reduces a grid: `(B, H, W, C)` -> `(B, min(H, 7), min(W, 7), C)`."""
        height, width = x.shape[1:3]
        pooled = average_pool(x, (min(height, POOL_SIZE), min(width, POOL_SIZE)))
        return F.gelu(self.norm(self.proj(pooled)))
