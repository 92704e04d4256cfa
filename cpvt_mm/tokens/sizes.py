"""Sizes of grids and maps: rounding, and padding or cropping to a size."""
import torch.nn.functional as F
from torch import Tensor

from .tracing import has_size


def pad_or_crop(x: Tensor, height: int, width: int) -> Tensor:
    """Zero-pads or crops at the bottom and on the right: `(B, C, H, W)` -> `(B, C, height, width)`, or `x` itself."""
    if has_size(x, slice(2, None), (height, width)):
        return x
    return F.pad(x, (0, width - x.shape[3], 0, height - x.shape[2]))


def round_up(length: int, multiple: int) -> int:
    """Rounds `length` up to a multiple of `multiple`."""
    # Other forms fail: torch.compile (2.13) fails on the remainder of a negative dynamic size
    # (-length % multiple), and ONNX rounds -length // multiple towards zero.
    return (length + multiple - 1) // multiple * multiple


def grid_size(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Returns rows and columns of the grid for an image of this height and width at a stride, rounded up."""
    return round_up(size[0], stride) // stride, round_up(size[1], stride) // stride
