"""The grid of a sequence of tokens, and pure functions on tokens and maps.

Tokens have the shape `(B, E + H * W, C)`: first E extra tokens, such as a class token, then the cells row by row. Maps
have the shape `(B, C, H, W)`. Images of several sizes form one sequence `(1, T, C)`. Its layout is a `Packing`, which
has the same methods as `Grid`.
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
    """The layout of a sequence of tokens: rows and columns of cells. All images form one group.

    A `Packing` has several groups, one for each grid. With spatial reduction, keys have a coarser grid than queries.
    The top left corners of both grids coincide.
    """
    height: int  # rows
    width: int  # columns
    cell_height: float = 1  # height of a cell, measured in cells of the queries
    cell_width: float = 1  # width of a cell, measured in cells of the queries
    extra: int = 0  # number of extra tokens before the first cell
    frames: int = 1  # number of frames in a clip; a clip consists of consecutive images
    is_traced: bool = False  # whether torch records the code; then no step may depend on a size

    @property
    def size(self) -> int:
        """Number of cells, `height * width`."""
        return self.height * self.width

    @property
    def grids(self) -> 'Sequence[Grid]':
        """The grid of each group."""
        return [self]

    def with_grids(self, grids: 'Sequence[Grid]') -> 'Grid':
        """Returns the same groups with other grids, one for each group."""
        return grids[0]

    def split(self, x: Tensor, dim: int = 1) -> Sequence[Tensor]:
        """Returns a view for each group: `(n, N, C)`, or `(n, heads, N, C)` if `dim`, the dimension of tokens, is 2."""
        return [x]

    def join(self, parts: Sequence[Tensor], dim: int = 1) -> Tensor:
        """Joins the views of all groups into one sequence; reverses `split`."""
        return parts[0]

    def each(self, function: Callable[..., Tensor], x: Tensor, *args: int) -> Tensor:
        """Calls `function(cells, *args, grid)` for each group with its cells `(n, H * W, C)`. Extra tokens stay
        unchanged.
        """
        cells = self.cells(x)
        changed = function(cells, *args, self)
        return x if changed is cells else after_extra(x, changed, self.extra)

    def patches(self, x: Tensor, side: int, cell: int = 1) -> 'tuple[Tensor, Grid]':
        """Cuts the grid into patches for `PatchConv2d`, zero-padded at the bottom and right; also returns their
        `coarser` grid.
        """
        cells, grid = x.view(x.shape[0], self.height, self.width, x.shape[2]), self.coarser(side, cell)
        below, right = grid.height * side - self.height, grid.width * side - self.width
        if self.is_traced or below or right:
            cells = F.pad(cells, (0, 0, 0, right, 0, below))
        if not self.is_traced:
            return cells.permute(0, 3, 1, 2), grid
        cut = cells.view(x.shape[0], grid.height, side, grid.width, side, x.shape[2])
        return cut.transpose(2, 3).flatten(3).flatten(1, 2), grid

    def convolve(self, conv: nn.Module, x: Tensor, gap: int, stride: int = 1) -> Tensor:
        """Applies a zero-padded convolution to the cells and returns the cells of the `coarser` grid.

        `gap` is the number of rows that the kernel reaches up and down.
        """
        return to_tokens(conv(to_map(x, self)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor | None] | None, keys: object,
               scale: float, drop_rate: float) -> Tensor:
        """Returns attention, `(B, N, heads, channels)`.

        Queries, keys and values have the shape `(B, heads, N, channels)`. `biases` contains a bias of the logits for
        each group. `scale` multiplies the logits, and `drop_rate` is the dropout rate of attention weights.
        """
        bias = biases[0] if biases else None
        return F.scaled_dot_product_attention(q, k, v, bias, drop_rate, scale=scale).transpose(1, 2)

    def coarser(self, side: int, cell: int = 1) -> 'Grid':
        """Returns the grid of patches with `side * side` cells; `cell` is the height and width of a patch in the new
        grid.
        """
        return Grid((self.height + side - 1) // side, (self.width + side - 1) // side, cell, cell, 0, self.frames,
                    self.is_traced)

    def cells(self, x: Tensor) -> Tensor:
        """Returns the cells: the tokens without the extra tokens."""
        return x[:, self.extra:] if self.extra else x

    def mean(self, x: Tensor) -> Tensor:
        """Returns the mean of the cells of each image, `(B, C)`; `x` is `(B, H * W, C)`, as `unpack` returns it."""
        return x.mean(dim=1)

    def count(self, x: Tensor) -> int:
        """Returns the number of clips. If encodings do not span frames, each image is a clip."""
        return x.shape[0] // self.frames

    def draw(self, x: Tensor, keep: float) -> Tensor:
        """Draws a factor for each clip, 1 / keep with probability `keep`, else 0, in a shape that broadcasts to tokens.
        """
        drawn = x.new_empty((self.count(x), 1, 1)).bernoulli_(keep).div_(keep)
        return drawn if self.frames == 1 else drawn.repeat_interleave(self.frames, 0)

    def part(self, clips: Sequence[int]) -> 'tuple[int, Tensor, Grid]':
        """Returns the dimension and the indices at which the tokens of some clips are, and the layout of these tokens.
        """
        return 0, torch.tensor([clip * self.frames + frame for clip in clips for frame in range(self.frames)]), self

    def unpack(self, x: Tensor) -> 'tuple[Tensor, Grid]':
        """Returns tokens as a padded batch, `(B, E + H * W, C)`, zero outside each image, and the grid of the largest
        image.
        """
        return x, self


def pixels(x: Tensor, frames: int = 1) -> tuple[Tensor, Grid]:
    """Reshapes images `(B, C, H, W)` to pixels `(B, H * W, C)`; also returns their grid."""
    return to_tokens(x), Grid(x.shape[2], x.shape[3], frames=frames, is_traced=is_traced(x))


def after_extra(x: Tensor, cells: Tensor, extra: int, dim: int = 1) -> Tensor:
    """Puts the extra tokens of `x`, which come first along `dim`, before the given cells."""
    return torch.cat([x.narrow(dim, 0, extra), cells], dim) if extra else cells


def to_map(cells: Tensor, grid: Grid) -> Tensor:
    """Returns cells `(B, H * W, C)` as a map `(B, C, H, W)`: a view, channels-last in memory if `cells` is contiguous.
    """
    return cells.view(cells.shape[0], grid.height, grid.width, cells.shape[2]).permute(0, 3, 1, 2)


def to_output(cells: Tensor, grid: Grid) -> Tensor:
    """Returns cells `(B, H * W, C)` as a contiguous map `(B, C, H, W)`, because mmcv's RoIAlign needs contiguous maps.
    """
    return to_map(with_contiguous_gradient(cells), grid).contiguous()


def to_tokens(x: Tensor) -> Tensor:
    """Returns a map `(B, C, H, W)` as cells `(B, H * W, C)`: a view, contiguous if `x` is channels-last in memory."""
    return x.flatten(2).transpose(1, 2)
