"""Pure functions on token grids `(B, H, W, C)`."""
import torch.nn.functional as F
from torch import Tensor


def to_nchw(x: Tensor) -> Tensor:
    """`(B, H, W, C)` -> `(B, C, H, W)`: a view, channels-last in memory where `x` is contiguous."""
    return x.permute(0, 3, 1, 2)


def to_nhwc(x: Tensor) -> Tensor:
    """`(B, C, H, W)` -> `(B, H, W, C)`: a view, contiguous where `x` is channels-last in memory."""
    return x.permute(0, 2, 3, 1)


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zero rows below and zero columns to the right, until both sides of the grid are multiples.

    `(B, H, W, C)` -> `(B, ceil(H / multiple) * multiple, ceil(W / multiple) * multiple, C)`; `x` itself if they are.
    """
    below, right = -x.shape[1] % multiple, -x.shape[2] % multiple
    return F.pad(x, (0, 0, 0, right, 0, below)) if below or right else x
