"""Images of several sizes in one pass, without padding, for `padding='exact'`.

The tokens of all images are one sequence `(1, T, C)`. Layers that treat each token alone, and patches, whose stride is
the side of their kernel, need not know where an image ends. Attention, position encodings and other convolutions do.
"""
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import Grid, Size, round_up, to_map, to_tokens
from .moves import Move
from .tracing import cached

try:
    varlen: Any = importlib.import_module('torch.nn.attention.varlen')
except ImportError:  # before torch 2.10
    varlen = None
if varlen and 'scale' not in inspect.signature(varlen.varlen_attn).parameters:  # torch 2.10
    varlen = None

HALF = (torch.float16, torch.bfloat16)  # the only dtypes of varlen_attn
FLASH_CAPABILITY = (8, 0)  # of the oldest GPUs on which it runs
Result = TypeVar('Result')


class Group(NamedTuple):
    """Images of one grid, one after another in the sequence."""
    images: tuple[int, ...]  # their places in the batch
    grid: Grid

    @property
    def length(self) -> int:
        """Tokens of an image."""
        return self.grid.extra + self.grid.size


def built_once(method: Callable[..., Result]) -> Callable[..., Result]:
    """Decorates a method of `Packing` that makes indices, so that each of its results is made once, in eager code."""

    name = method.__name__

    @torch.compiler.disable
    def build(packing: 'Packing', *args: int) -> None:
        with torch.inference_mode(False):  # such tensors could not be used in training later
            packing.built[name, args] = method(packing, *args)

    @functools.wraps(method)
    def call(packing: 'Packing', *args: int) -> Result:
        if (name, args) not in packing.built:
            build(packing, *args)
        return packing.built[name, args]

    return call


class Packing:
    """Where a sequence `(1, T, C)` has the tokens of each image: groups of images of one grid, one after another.

    All grids have the same number of extra tokens; cells are cut and convolved where there are none. Make packings with
    `make_packing`, which remembers them.
    """

    def __init__(self, groups: tuple[Group, ...], device: torch.device) -> None:
        self.groups = groups
        self.device = device
        self.extra = groups[0].grid.extra  # tokens of each image
        self.runs_varlen = varlen is not None and device.type == 'cuda' and (
            torch.cuda.get_device_capability(device) >= FLASH_CAPABILITY)
        self.built: dict[tuple[str, tuple[int, ...]], Any] = {}
        lengths = [group.length for group in groups for _ in group.images]
        self.total, self.longest = sum(lengths), max(lengths)
        self.lengths = torch.tensor(lengths).to(device, non_blocking=True)  # (B,)
        offsets = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
        self.offsets = offsets.to(device, non_blocking=True)  # (B + 1,), for varlen_attn

    def with_grids(self, grids: Sequence[Grid]) -> 'Packing':
        """Returns the packing of the same groups of images with other grids."""
        return make_packing(tuple(group._replace(grid=grid) for group, grid in zip(self.groups, grids, strict=True)),
                            self.device)

    def split(self, x: Tensor, dim: int = 1) -> list[Tensor]:
        """Returns views of each group: `(1, T, C)` -> `(n, N, C)`; for dim 2 `(1, heads, T, C)` -> `(n, heads, N, C)`.
        """
        parts = x.squeeze(0).split([len(group.images) * group.length for group in self.groups], dim - 1)
        return [part.unflatten(dim - 1, (len(group.images), group.length)).movedim(dim - 1, 0)
                for part, group in zip(parts, self.groups, strict=True)]

    def join(self, parts: Sequence[Tensor], dim: int = 1) -> Tensor:
        """Does the opposite of `split`."""
        return torch.cat([part.movedim(0, dim - 1).flatten(dim - 1, dim) for part in parts], dim - 1)[None]

    def of_images(self, values: Tensor, total: int) -> Tensor:
        """Gives each of `total` tokens the value of its image: `(B,)`, in the order of the sequence -> `(1, T, 1)`."""
        return values.repeat_interleave(self.lengths, output_size=total)[None, :, None]

    def patches(self, x: Tensor, side: int, cell: int = 1) -> tuple[Tensor, 'Packing']:
        """Cuts the grids into patches, each of which is an image of its own: `(1, T, C)` -> `(P, C, side, side)`.

        Rows and columns that do not fill a patch are zero-padded. Also returns the packing of the patches, whose cells
        have the height and width `cell`.
        """
        cells = self.to_patches(side)(x.squeeze(0)).unflatten(0, (-1, side, side))
        return cells.permute(0, 3, 1, 2), self.coarser(side, cell)

    def _numbers(self) -> list[Tensor]:
        """Returns the places of the tokens in the sequence for each group, `(n, H, W)`; there are no extra tokens."""
        places = torch.arange(self.total).split([len(group.images) * group.length for group in self.groups])
        return [part.view(-1, grid.height, grid.width) for part, (_, grid) in zip(places, self.groups, strict=True)]

    @built_once
    def to_patches(self, side: int) -> Move:
        """Returns the way from the sequence to the cells of patches, `(T, C)` -> `(P * side * side, C)`."""
        source = []
        for cells in self._numbers():
            height, width = (round_up(length, side) for length in cells.shape[1:])
            padded = F.pad(cells, (0, width - cells.shape[2], 0, height - cells.shape[1]), value=self.total)
            source.append(padded.view(-1, height // side, side, width // side, side).transpose(2, 3).flatten())
        return Move.of(torch.cat(source), self.total, self.device)

    @built_once
    def coarser(self, side: int, cell: int) -> 'Packing':
        """Returns the packing of patches, see `patches`."""
        grids = [group.grid._replace(height=round_up(group.grid.height, side) // side,
                                     width=round_up(group.grid.width, side) // side,
                                     cell_height=cell, cell_width=cell) for group in self.groups]
        return self.with_grids(grids)

    @built_once
    def to_canvas(self, gap: int, multiple: int = 1) -> tuple[Move, Grid]:
        """Returns the way from the sequence to a canvas, and its grid: images one below another, with gaps.

        Zeros fill sides up to multiples of `multiple`; below this, an image has `gap` rows of zeros.
        """
        width = round_up(max(group.grid.width for group in self.groups), multiple)
        rows = []
        for cells in self._numbers():
            _, height, columns = cells.shape
            below = round_up(height, multiple) - height + gap
            rows.append(F.pad(cells, (0, width - columns, 0, below), value=self.total).flatten(0, 1))
        canvas = torch.cat(rows)
        return Move.of(canvas.flatten(), self.total, self.device), Grid(len(canvas), width)

    @built_once
    def to_batch(self) -> tuple[Move, Grid]:
        """Returns the way from the sequence to the sequences of a padded batch, and the grid of the batch."""
        height = max(group.grid.height for group in self.groups)
        whole = self.groups[0].grid._replace(height=height, width=max(group.grid.width for group in self.groups))
        places = []
        for images, grid in self.groups:
            cells = torch.arange(grid.height)[:, None] * whole.width + torch.arange(grid.width) + whole.extra
            sequence = torch.cat([torch.arange(whole.extra), cells.flatten()])
            places.append((torch.tensor(images)[:, None] * (whole.extra + whole.size) + sequence).flatten())
        from_batch = Move.of(torch.cat(places), len(self.lengths) * (whole.extra + whole.size), self.device)
        return from_batch.back, whole

    @built_once
    def cells_of_images(self) -> Tensor:
        """Returns the number of cells of each image, in the order of the batch, `(B, 1)`."""
        cells = {image: group.grid.size for group in self.groups for image in group.images}
        return torch.tensor([cells[image] for image in range(len(cells))])[:, None].to(self.device, non_blocking=True)

    def unpack(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Returns the tokens in a padded batch, `(1, T, C)` -> `(B, E + H * W, C)`, and its grid; see `unpack`."""
        move, grid = self.to_batch()
        return move(x.squeeze(0)).unflatten(0, (-1, grid.extra + grid.size)), grid


# Of tokens `(B, E + H * W, C)` of images of one size, which are one group, or of packed ones.
Layout: TypeAlias = Grid | Packing


def grids_of(layout: Layout) -> list[Grid]:
    """Returns the grid of each group of images."""
    return [group.grid for group in layout.groups] if isinstance(layout, Packing) else [layout]


def groups_of(x: Tensor, layout: Layout, dim: int = 1) -> list[tuple[Tensor, Grid]]:
    """Returns views of the tokens of each group, and its grid; `dim` is that of tokens, 2 if `heads` are before it."""
    parts = layout.split(x, dim) if isinstance(layout, Packing) else [x]
    return list(zip(parts, grids_of(layout), strict=True))


def joined(parts: Sequence[Tensor], layout: Layout, dim: int = 1) -> Tensor:
    """Joins the tokens of groups; does the opposite of `groups_of`."""
    return layout.join(parts, dim) if isinstance(layout, Packing) else parts[0]


def over_groups(function: Callable[[Tensor, Grid], Tensor], x: Tensor, layout: Layout) -> Tensor:
    """Applies a function of tokens and their grid, which keeps the shape `(n, N, C)`, to each group."""
    groups = groups_of(x, layout)
    changed = [function(part, grid) for part, grid in groups]
    return x if all(new is part for new, (part, _) in zip(changed, groups, strict=True)) else joined(changed, layout)


def over_grids(function: Callable[[Tensor, Grid], tuple[Tensor, Grid]], x: Tensor, layout: Layout
               ) -> tuple[Tensor, Layout]:
    """Applies a function that changes the grid, too, to each group; also returns the new layout."""
    parts, grids = zip(*(function(part, grid) for part, grid in groups_of(x, layout)), strict=True)
    new = layout.with_grids(grids) if isinstance(layout, Packing) else grids[0]
    return joined(parts, new), new


def with_tokens(tokens: Sequence[Tensor], count: int, x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
    """Puts learnt tokens, `(1, n, C)` each and `count` in all, before the cells of each image; returns the new layout.
    """

    def of_group(part: Tensor, grid: Grid) -> tuple[Tensor, Grid]:
        # len(part) would fix the number of images in torch.export.
        extra = [token.expand(part.shape[0], -1, -1) for token in tokens]
        return torch.cat([*extra, part], dim=1), grid._replace(extra=count)

    return over_grids(of_group, x, layout)


def without_tokens(x: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
    """Removes the extra tokens of each image; also returns the new layout."""
    return over_grids(lambda part, grid: (part[:, grid.extra:], grid._replace(extra=0)), x, layout)


def pack(groups: Mapping[tuple[Size, int], Sequence[int]], device: torch.device) -> Packing:
    """Returns the packing of images, of which groups have the same rows and columns, and frames of a clip."""
    return make_packing(tuple(Group(tuple(images), Grid(height, width, frames=frames))
                              for ((height, width), frames), images in groups.items()), device)


@cached
def make_packing(groups: tuple[Group, ...], device: torch.device) -> Packing:
    """Returns the packing of groups of images, see `Packing`."""
    return Packing(groups, device)


def convolve(conv: nn.Module, x: Tensor, grid: Layout, gap: int) -> Tensor:
    """Applies a zero-padded convolution to cells, `(B, H * W, C)` or packed ones; it reaches `gap` rows up and down."""
    if isinstance(grid, Grid):
        return to_tokens(conv(to_map(x, grid)))
    move, canvas = grid.to_canvas(gap)  # all images at once: the gaps are their zero padding
    convolved = to_tokens(conv(to_map(move(x.squeeze(0))[None], canvas)))
    return move.back(convolved.squeeze(0))[None]


def attend(q: Tensor, k: Tensor, v: Tensor, head_dims: int, biases: Sequence[Tensor | None] | None, grid: Layout,
           key_grid: Layout, drop_rate: float) -> Tensor:
    """Returns the attention of queries to the keys of their image, `(B, N, C)`: `(1, T, C)` for packed images.

    The arguments are those of `Projected`, and the dropout of attention weights.
    """
    if (isinstance(grid, Packing) and isinstance(key_grid, Packing) and biases is None
            and fits_varlen(q, grid, drop_rate)):
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))  # (T, heads, C / heads)
        out = varlen.varlen_attn(q, k, v, grid.offsets, key_grid.offsets, grid.longest, key_grid.longest,
                                 scale=head_dims**-0.5)
        return out[..., :head_dims].flatten(1)[None]
    groups = zip(groups_of(q, grid, dim=2), groups_of(k, key_grid, dim=2), groups_of(v, key_grid, dim=2),
                 biases or [None] * len(grids_of(grid)), strict=True)
    return joined([attend_alone(q, k, v, head_dims, bias, drop_rate) for (q, _), (k, _), (v, _), bias in groups], grid)


def fits_varlen(q: Tensor, packing: Packing, drop_rate: float) -> bool:
    """Returns whether torch attends to images of several sizes at once, which it does on a GPU in half precision."""
    return (packing.runs_varlen and q.dtype in HALF and q.shape[-1] % 8 == 0 and drop_rate == 0.
            and not torch.are_deterministic_algorithms_enabled())  # its backward pass adds in any order


def attend_alone(q: Tensor, k: Tensor, v: Tensor, head_dims: int, bias: Tensor | None, drop_rate: float) -> Tensor:
    """Returns the attention of images of one size, `(B, N, C)`."""
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop_rate, scale=head_dims**-0.5)
    return out[..., :head_dims].transpose(1, 2).flatten(2)


def unpack(x: Tensor, grid: Layout) -> tuple[Tensor, Grid]:
    """Returns the tokens of the images of a batch, `(B, E + H * W, C)`, and their grid.

    Of packed ones, H and W are those of the largest grids, and tokens outside an image are zero.
    """
    return grid.unpack(x) if isinstance(grid, Packing) else (x, grid)


def mean_of_cells(x: Tensor, grid: Layout) -> Tensor:
    """Returns the mean of the cells of each image, `(B, C)`; they are unpacked, `(B, H * W, C)`."""
    return x.sum(dim=1) / grid.cells_of_images() if isinstance(grid, Packing) else x.mean(dim=1)
