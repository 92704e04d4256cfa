"""The grid of a sequence of tokens, and pure functions on tokens and maps.

Tokens are `(B, E + H * W, C)`: E extra ones, such as a class token, then cells row by row. Maps are `(B, C, H, W)`.
Images of several sizes are one sequence `(1, T, C)`, with a `Packing`, which has the methods of `Grid`.
"""
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .tracing import is_traced, with_contiguous_gradient

# Height and width, in pixels or cells.
Size: TypeAlias = tuple[int, int]


class Grid(NamedTuple):
    """The cells of a sequence of tokens. The top left corners of the grids of queries and keys coincide.

    All images are one group here; a `Packing` has a group for each grid.
    """
    height: int  # rows
    width: int  # columns
    cell_height: float = 1  # height of a cell in cells of another grid: for keys, that of the queries
    cell_width: float = 1  # in the same unit
    extra: int = 0  # number of extra tokens before the first cell
    frames: int = 1  # of each clip; the frames of a clip are consecutive images
    is_traced: bool = False  # whether torch records the code, so that nothing may depend on a size

    @property
    def size(self) -> int:
        """Number of cells, `height * width`."""
        return self.height * self.width

    @property
    def grids(self) -> 'Sequence[Grid]':
        """The grid of each group."""
        return [self]

    def with_grids(self, grids: 'Sequence[Grid]') -> 'Grid':
        """Returns the layout of the same groups with other grids."""
        return grids[0]

    def split(self, x: Tensor, dim: int = 1) -> Sequence[Tensor]:
        """Returns views of each group, `(n, N, C)`; for `dim` 2, that of tokens, `(n, heads, N, C)`."""
        return [x]

    def join(self, parts: Sequence[Tensor], dim: int = 1) -> Tensor:
        """Does the opposite of `split`."""
        return parts[0]

    def each(self, function: Callable[..., Tensor], x: Tensor, *args: int) -> Tensor:
        """Applies a function of cells `(n, H * W, C)`, `args` and the grid to each group, but not to extra tokens."""
        cells = self.cells(x)
        changed = function(cells, *args, self)
        return x if changed is cells else after_extra(x, changed, self.extra)

    def patches(self, x: Tensor, side: int, cell: int = 1) -> 'tuple[Tensor, Grid]':
        """Returns whole patches, zero-padded below and on the right, for `PatchConv2d`; and what `coarser` returns."""
        cells, grid = x.view(x.shape[0], self.height, self.width, x.shape[2]), self.coarser(side, cell)
        below, right = grid.height * side - self.height, grid.width * side - self.width
        if self.is_traced or below or right:
            cells = F.pad(cells, (0, 0, 0, right, 0, below))
        if not self.is_traced:
            return cells.permute(0, 3, 1, 2), grid
        cut = cells.view(x.shape[0], grid.height, side, grid.width, side, x.shape[2])
        return cut.transpose(2, 3).flatten(3).flatten(1, 2), grid

    def convolve(self, conv: nn.Module, x: Tensor, gap: int, stride: int = 1) -> Tensor:
        """Applies a zero-padded convolution to cells; it reaches `gap` rows up and down. Returns cells of `coarser`."""
        return to_tokens(conv(to_map(x, self)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor | None] | None, keys: object,
               scale: float, drop_rate: float) -> Tensor:
        """Returns attention `(B, N, heads, channels)`; inputs have heads first, and each group a bias of the logits."""
        bias = biases[0] if biases else None
        return F.scaled_dot_product_attention(q, k, v, bias, drop_rate, scale=scale).transpose(1, 2)

    def coarser(self, side: int, cell: int = 1) -> 'Grid':
        """Returns the layout of patches of `side` cells, which have the height and width `cell`."""
        return Grid((self.height + side - 1) // side, (self.width + side - 1) // side, cell, cell, 0, self.frames,
                    self.is_traced)

    def cells(self, x: Tensor) -> Tensor:
        """Returns the tokens without the extra ones."""
        return x[:, self.extra:] if self.extra else x

    def mean(self, x: Tensor) -> Tensor:
        """Returns the mean of the cells of each image, `(B, C)`; they are unpacked, `(B, H * W, C)`."""
        return x.mean(dim=1)

    def count(self, x: Tensor) -> int:
        """Returns the number of clips of tokens; an image is a clip if encodings do not span frames."""
        return x.shape[0] // self.frames

    def draw(self, x: Tensor, keep: float) -> Tensor:
        """Draws 1 / keep with probability `keep`, else 0, for each clip; it can be multiplied with tokens."""
        drawn = x.new_empty((self.count(x), 1, 1)).bernoulli_(keep).div_(keep)
        return drawn if self.frames == 1 else drawn.repeat_interleave(self.frames, 0)

    def part(self, clips: Sequence[int]) -> 'tuple[int, Tensor, Grid]':
        """Returns where the tokens of some clips are: a dimension and their places in it; and the layout of these."""
        return 0, torch.tensor([clip * self.frames + frame for clip in clips for frame in range(self.frames)]), self

    def unpack(self, x: Tensor) -> 'tuple[Tensor, Grid]':
        """Returns the tokens of the batch, `(B, E + H * W, C)`, zero outside an image, and the largest grid."""
        return x, self


def pixels(x: Tensor, frames: int = 1) -> tuple[Tensor, Grid]:
    """Returns the pixels of images of one size, `(B, C, H, W)` -> `(B, H * W, C)`, and their grid."""
    return to_tokens(x), Grid(x.shape[2], x.shape[3], frames=frames, is_traced=is_traced(x))


def after_extra(x: Tensor, cells: Tensor, extra: int, dim: int = 1) -> Tensor:
    """Puts the extra tokens of `x`, the first along `dim`, before other cells."""
    return torch.cat([x.narrow(dim, 0, extra), cells], dim) if extra else cells


def to_map(cells: Tensor, grid: Grid) -> Tensor:
    """Returns a view `(B, H * W, C)` -> `(B, C, H, W)`; it is channels-last in memory if `cells` is contiguous."""
    return cells.view(cells.shape[0], grid.height, grid.width, cells.shape[2]).permute(0, 3, 1, 2)


def to_output(cells: Tensor, grid: Grid) -> Tensor:
    """Returns the map of cells, `(B, H * W, C)` -> `(B, C, H, W)`, contiguous as mmcv's RoIAlign needs it."""
    return to_map(with_contiguous_gradient(cells), grid).contiguous()


def to_tokens(x: Tensor) -> Tensor:
    """Returns a view `(B, C, H, W)` -> `(B, H * W, C)`; it is contiguous if `x` is channels-last in memory."""
    return x.flatten(2).transpose(1, 2)
