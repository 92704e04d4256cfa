"""The grid of a sequence of tokens, and pure functions on tokens, maps and coordinates.

Tokens are `(B, E + H * W, C)`: E extra ones, such as a class token, then cells row by row. Maps are `(B, C, H, W)`.
"""
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from .tracing import has_size, with_contiguous_gradient

# Height and width, in pixels or cells.
Size: TypeAlias = tuple[int, int]


class Grid(NamedTuple):
    """The cells of a sequence of tokens. The top left corners of the grids of queries and keys coincide."""
    height: int  # rows
    width: int  # columns
    cell_height: float = 1  # height of a cell in cells of another grid: for keys, that of the queries
    cell_width: float = 1  # in the same unit
    extra: int = 0  # number of extra tokens before the first cell
    frames: int = 1  # of each clip; the frames of a clip are consecutive images

    @property
    def size(self) -> int:
        """Number of cells, `height * width`."""
        return self.height * self.width


def to_map(cells: Tensor, grid: Grid) -> Tensor:
    """Returns a view `(B, H * W, C)` -> `(B, C, H, W)`; it is channels-last in memory if `cells` is contiguous."""
    return cells.unflatten(1, (grid.height, grid.width)).permute(0, 3, 1, 2)


def to_output(cells: Tensor, grid: Grid) -> Tensor:
    """Returns the map of cells, `(B, H * W, C)` -> `(B, C, H, W)`, contiguous as mmcv's RoIAlign needs it."""
    return to_map(with_contiguous_gradient(cells), grid).contiguous()


def to_tokens(x: Tensor) -> Tensor:
    """Returns a view `(B, C, H, W)` -> `(B, H * W, C)`; it is contiguous if `x` is channels-last in memory."""
    return x.flatten(2).transpose(1, 2)


def to_clips(cells: Tensor, grid: Grid) -> Tensor:
    """Returns a view of clips of T frames, `grid.frames`: `(N * T, H * W, C)` -> `(N, C, T, H, W)`."""
    return cells.unflatten(1, (grid.height, grid.width)).unflatten(0, (-1, grid.frames)).movedim(-1, 1)


def clips_to_tokens(x: Tensor) -> Tensor:
    """Returns the tokens of clips: `(N, C, T, H, W)` -> `(N * T, H * W, C)`."""
    return x.movedim(1, -1).flatten(2, 3).flatten(0, 1)


def to_nchw(x: Tensor) -> Tensor:
    """Returns a view `(B, H, W, C)` -> `(B, C, H, W)`; it is channels-last in memory if `x` is contiguous."""
    return x.permute(0, 3, 1, 2)


def to_nhwc(x: Tensor) -> Tensor:
    """Returns a view `(B, C, H, W)` -> `(B, H, W, C)`; it is contiguous if `x` is channels-last in memory."""
    return x.permute(0, 2, 3, 1)


def token_centers(length: int, cell: float = 1, device: torch.device | None = None) -> Tensor:
    """Returns cell centers along one axis, in query tokens: `(length,)`, float32. Query token i has its center at i."""
    return (torch.arange(length, dtype=torch.float32, device=device) + 0.5) * cell - 0.5


def resample(table: Tensor, size: tuple[int, ...], antialias: bool = False, offset: float = 0.,
             mode: Literal['bicubic', 'bilinear'] = 'bicubic') -> Tensor:
    """Resamples a table `(length, C)` linearly, or `(H, W, C)` by `mode`, to `(*size, C)` in its dtype.

    It interpolates with align_corners=False, in float32; a table of this size is returned unchanged. In two dimensions,
    `antialias` filters a table that shrinks; without, `offset` cells are added to each side of the new size for the
    scale.
    """
    if has_size(table, slice(-1), size):
        return table
    channels_first = table.float().movedim(-1, 0)[None]
    if offset:
        sampled = F.grid_sample(channels_first, _centers_with_offset(table, size, offset), mode='bicubic',
                                padding_mode='border', align_corners=False)
    else:
        sampled = F.interpolate(channels_first, size, mode='linear' if len(size) == 1 else mode,
                                align_corners=False, antialias=antialias)
    return sampled[0].movedim(0, -1).to(table.dtype)


def _centers_with_offset(table: Tensor, size: tuple[int, ...], offset: float) -> Tensor:
    """Returns the cell centers of a new size for `F.grid_sample`: `(1, H, W, 2)`, x and y."""
    rows, columns = (torch.full((), side, dtype=torch.float32, device=table.device) for side in size)
    # In recorded code, too, a table of the right size must stay unchanged.
    added = offset * ((rows != table.shape[0]) | (columns != table.shape[1]))
    y, x = ((2 * token_centers(length, device=table.device) + 1) / (side + added) - 1
            for length, side in zip(size, (rows, columns), strict=True))
    return torch.stack([x.expand(size[0], -1), y[:, None].expand(-1, size[1])], dim=-1)[None]


def pad_or_crop(x: Tensor, height: int, width: int) -> Tensor:
    """Zero-pads or crops at the bottom and on the right: `(B, C, H, W)` -> `(B, C, height, width)`, or `x` itself."""
    if has_size(x, slice(2, None), (height, width)):
        return x
    return F.pad(x, (0, width - x.shape[3], 0, height - x.shape[2]))


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zero-pads a map `(B, C, H, W)` at the bottom and on the right until both sides are multiples of `multiple`."""
    height, width = x.shape[2:]
    return pad_or_crop(x, round_up(height, multiple), round_up(width, multiple))


def round_up(length: int, multiple: int) -> int:
    """Rounds `length` up to a multiple of `multiple`."""
    # Other forms fail: torch.compile (2.13) fails on the remainder of a negative dynamic size
    # (-length % multiple), and ONNX rounds -length // multiple towards zero.
    return (length + multiple - 1) // multiple * multiple


def grid_size(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Returns rows and columns of the grid for an image of this height and width at a stride, rounded up."""
    return round_up(size[0], stride) // stride, round_up(size[1], stride) // stride
