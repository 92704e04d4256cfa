"""Pure functions on token grids `(B, H, W, C)` and on the coordinates of their cells."""
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .tracing import is_known_to_be


class Grid(NamedTuple):
    """Size of a token grid, and the size of its cells relative to the query grid.

    Attributes:
        height: Number of rows.
        width: Number of columns.
        cell_height: Height of a cell in query tokens: 1 for queries, the stage's `sr_ratio` for keys, possibly a
            fraction for pooled keys. The top left corners of the query grid and the key grid coincide.
        cell_width: Width of a cell in query tokens.
    """
    height: int
    width: int
    cell_height: float = 1
    cell_width: float = 1

    @property
    def size(self) -> int:
        """Number of cells, `height * width`."""
        return self.height * self.width


def token_centers(length: int, cell: float = 1, device: torch.device | None = None) -> Tensor:
    """Returns cell centers along one axis, in query tokens: `(length,)`, float32. Query token i has its center at i."""
    return (torch.arange(length, dtype=torch.float32, device=device) + 0.5) * cell - 0.5


def on_grid(function: Callable[[Tensor], Tensor], x: Tensor, grid: Grid | None = None) -> Tensor:
    """Applies `function`, `(B, H, W, C)` -> `(B, H, W, C)`, to the tokens of a grid.

    Args:
        function: A function that returns the argument object itself if it changes nothing.
        x: `(B, H, W, C)`; or, with `grid`, `(B, E + H * W, C)`. The first E tokens (class tokens) are not part of the
            grid and stay unchanged.
        grid: The grid of the tokens. Defaults to None: `x` is the grid itself.

    Returns:
        A tensor of the shape of `x`; `x` itself if the function changed nothing.
    """
    if grid is None:
        return function(x)
    extra, tokens = x.split([x.shape[1] - grid.size, grid.size], dim=1)
    tokens = tokens.unflatten(1, (grid.height, grid.width))
    encoded = function(tokens)
    return x if encoded is tokens else torch.cat([extra, encoded.flatten(1, 2)], dim=1)


def resample(table: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resamples a table `(length, C)` linearly, or `(H, W, C)` bicubically, to `(*size, C)`.

    It interpolates with align_corners=False and without antialiasing, in float32. The result has the dtype of `table`.
    A table of the right size is returned unchanged.
    """
    if is_known_to_be(table.shape[:-1], size):
        return table
    mode = 'linear' if len(size) == 1 else 'bicubic'
    channels_first = table.float().movedim(-1, 0)[None]
    return F.interpolate(channels_first, size, mode=mode, align_corners=False)[0].movedim(0, -1).to(table.dtype)


def to_nchw(x: Tensor) -> Tensor:
    """Returns a view `(B, H, W, C)` -> `(B, C, H, W)`; it is channels-last in memory if `x` is contiguous."""
    return x.permute(0, 3, 1, 2)


def to_nhwc(x: Tensor) -> Tensor:
    """Returns a view `(B, C, H, W)` -> `(B, H, W, C)`; it is contiguous if `x` is channels-last in memory."""
    return x.permute(0, 2, 3, 1)


def on_clips(function: Callable[[Tensor], Tensor], num_frames: int, x: Tensor) -> Tensor:
    """Applies `function`, `(N, T, H, W, C)` -> `(N, T, H, W, C)`, to images `(N * T, H, W, C)`; T is `num_frames`.

    The frames of a clip are consecutive. Returns `x` itself if the function changed nothing, as `on_grid` does.
    """
    clips = x.unflatten(0, (-1, num_frames))
    encoded = function(clips)
    return x if encoded is clips else encoded.flatten(0, 1)


def pad_or_crop(x: Tensor, height: int, width: int) -> Tensor:
    """Zero-pads or crops at the bottom and on the right: `(B, C, H, W)` -> `(B, C, height, width)`.

    Returns `x` itself if it has this size already.
    """
    if is_known_to_be(x.shape[2:], (height, width)):
        return x
    return F.pad(x, (0, width - x.shape[3], 0, height - x.shape[2]))


def round_up(length: int, multiple: int) -> int:
    """Rounds `length` up to a multiple of `multiple`."""
    # Two shorter forms fail: torch.compile (2.13) fails on the remainder of a negative dynamic size
    # (-length % multiple), and ONNX rounds -length // multiple towards zero.
    return (length - 1) // multiple * multiple + multiple


def grid_size(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Returns rows and columns of the grid for an image of this height and width at a stride, rounded up."""
    return round_up(size[0], stride) // stride, round_up(size[1], stride) // stride


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zero-pads a grid `(B, H, W, C)` at the bottom and on the right until both sides are multiples of `multiple`.

    Returns:
        `(B, ceil(H / multiple) * multiple, ceil(W / multiple) * multiple, C)`; a view of `x` if no padding is needed.
    """
    return to_nhwc(pad_or_crop(to_nchw(x), *(round_up(length, multiple) for length in x.shape[1:3])))
