"""Keys from average pooling: the linear spatial reduction of PVT v2."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import Grid, to_nhwc

POOL_SIZE = 7


class PoolReduction(nn.Module):
    """Average pooling to 7 x 7, a linear layer, LayerNorm, GELU (linear SRA of PVT v2, arXiv 2106.13797, section 3.2).

    If a side is not a multiple of 7, neighbouring parts overlap by a row or column. A side of less than 7 cells is not
    pooled. The cells of the key grid are fractions then.
    """

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.norm = nn.LayerNorm(embed_dims, eps=1e-5)

    def forward(self, x: Tensor) -> tuple[Tensor, Grid]:
        height, width = x.shape[2:]
        rows, columns = min(height, POOL_SIZE), min(width, POOL_SIZE)
        pooled = average_pool(to_nhwc(x), (rows, columns)).flatten(1, 2)
        return F.gelu(self.norm(self.proj(pooled))), Grid(rows, columns, height / rows, width / columns)


def average_pool(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Averages parts of a grid, like `F.adaptive_avg_pool2d`: `(B, H, W, C)` -> `(B, *size, C)`.

    It computes two matrix products, which can be exported with dynamic sizes, and whose gradient is deterministic on a
    GPU.
    """
    rows, columns = (_shares(length, parts, x) for length, parts in zip(x.shape[1:3], size, strict=True))
    return torch.einsum('qw,bpwc->bpqc', columns, torch.einsum('ph,bhwc->bpwc', rows, x))


def _shares(length: int, parts: int, like: Tensor) -> Tensor:
    """Returns the weight of each of `length` cells in the mean of each part: `(parts, length)`."""
    part = torch.arange(parts, device=like.device)[:, None]
    cell = torch.arange(length, device=like.device)
    start, stop = part * length // parts, ((part + 1) * length + parts - 1) // parts
    return ((cell >= start) & (cell < stop)).to(like.dtype) / (stop - start)
