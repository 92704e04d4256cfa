"""Images of several sizes in one pass, without padding, for `padding='exact'`.

The tokens of all images are one sequence `(1, T, C)`. Layers that treat each token alone, and patches, whose stride is
the side of their kernel, need not know where an image ends. Attention, position encodings and other convolutions do.
"""
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import Grid, Size, pad_or_crop, round_up, to_map, to_tokens
from .tracing import cached

try:
    varlen: Any = importlib.import_module('torch.nn.attention.varlen')
except ImportError:  # before torch 2.10
    varlen = None

HALF = (torch.float16, torch.bfloat16)  # the only dtypes of varlen_attn
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
        self.built: dict[tuple[str, tuple[int, ...]], Any] = {}
        lengths = [group.length for group in groups for _ in group.images]
        self.longest = max(lengths)
        self.lengths = self._index(torch.tensor(lengths))  # (B,)
        self.offsets = self._index(F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int())  # (B + 1,), for varlen_attn

    def _index(self, *parts: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in parts]).to(self.device, non_blocking=True)

    def with_grids(self, grids: Sequence[Grid]) -> 'Packing':
        """Returns the packing of the same groups of images with other grids."""
        return make_packing(tuple(group._replace(grid=grid) for group, grid in zip(self.groups, grids, strict=True)),
                            self.device)

    def split(self, x: Tensor, dim: int = 1) -> list[Tensor]:
        """Returns views of each group: `(1, T, C)` -> `(n, N, C)`; for dim 2 `(1, heads, T, C)` -> `(n, heads, N, C)`.
        """
        parts = x[0].split([len(group.images) * group.length for group in self.groups], dim - 1)
        return [part.unflatten(dim - 1, (len(group.images), group.length)).movedim(dim - 1, 0)
                for part, group in zip(parts, self.groups, strict=True)]

    def join(self, parts: Sequence[Tensor], dim: int = 1) -> Tensor:
        """Does the opposite of `split`."""
        return torch.cat([part.movedim(0, dim - 1).flatten(dim - 1, dim) for part in parts], dim - 1)[None]

    def of_images(self, values: Tensor) -> Tensor:
        """Gives each token the value of its image: `(B,)`, in the order of the sequence -> `(1, T, 1)`."""
        total = sum(len(group.images) * group.length for group in self.groups)
        return values.repeat_interleave(self.lengths, output_size=total)[None, :, None]

    def patches(self, x: Tensor, side: int, cell: int = 1) -> tuple[Tensor, 'Packing']:
        """Cuts the grids into patches, each of which is an image of its own: `(1, T, C)` -> `(P, C, side, side)`.

        Rows and columns that do not fill a patch are zero-padded. Also returns the packing of the patches, whose cells
        have the height and width `cell`.
        """
        places, coarser = self.patch_places(side), self.coarser(side, cell)
        cells = x[0] if len(places) == x.shape[1] else F.pad(x[0], (0, 0, 0, 1))  # the last one is zero
        return cells.index_select(0, places).unflatten(0, (-1, side, side)).permute(0, 3, 1, 2), coarser

    @built_once
    def patch_places(self, side: int) -> Tensor:
        """Returns the place of each cell of each patch in the sequence, `(P * side * side,)`; T is padding."""
        total, start, places = sum(len(group.images) * group.length for group in self.groups), 0, []
        for images, grid in self.groups:
            cells = torch.arange(len(images) * grid.size).view(-1, grid.height, grid.width) + start
            start += cells.numel()
            height, width = round_up(grid.height, side), round_up(grid.width, side)
            padded = F.pad(cells, (0, width - grid.width, 0, height - grid.height), value=total)
            places.append(padded.view(-1, height // side, side, width // side, side).transpose(2, 3))
        return self._index(*places)

    @built_once
    def coarser(self, side: int, cell: int) -> 'Packing':
        """Returns the packing of patches, see `patches`."""
        grids = [group.grid._replace(height=round_up(group.grid.height, side) // side,
                                     width=round_up(group.grid.width, side) // side,
                                     cell_height=cell, cell_width=cell) for group in self.groups]
        return self.with_grids(grids)

    @built_once
    def canvas(self, gap: int) -> tuple[Tensor, Grid]:
        """Returns the place of each cell on a canvas, `(T,)`, and its grid: images one below another, with gaps."""
        width = max(group.grid.width for group in self.groups)
        top, places = 0, []
        for images, grid in self.groups:
            tops = top + torch.arange(len(images)) * (grid.height + gap)
            rows = tops[:, None, None] + torch.arange(grid.height)[:, None]
            places.append(rows * width + torch.arange(grid.width))
            top += len(images) * (grid.height + gap)
        return self._index(*places), Grid(top, width)

    @built_once
    def in_batch(self) -> tuple[Tensor, Grid]:
        """Returns the place of each token in the sequences of a padded batch, `(T,)`, and the grid of the batch."""
        height = max(group.grid.height for group in self.groups)
        whole = self.groups[0].grid._replace(height=height, width=max(group.grid.width for group in self.groups))
        places = []
        for images, grid in self.groups:
            cells = torch.arange(grid.height)[:, None] * whole.width + torch.arange(grid.width) + whole.extra
            sequence = torch.cat([torch.arange(whole.extra), cells.flatten()])
            places.append(torch.tensor(images)[:, None] * (whole.extra + whole.size) + sequence)
        return self._index(*places), whole

    @built_once
    def cells_of_images(self) -> Tensor:
        """Returns the number of cells of each image, in the order of the batch, `(B, 1)`."""
        cells = {image: group.grid.size for group in self.groups for image in group.images}
        return self._index(torch.tensor([cells[image] for image in range(len(cells))]))[:, None]

    def unpack(self, x: Tensor) -> tuple[Tensor, Grid]:
        """Returns the tokens in a padded batch, `(1, T, C)` -> `(B, E + H * W, C)`, and its grid; see `unpack`."""
        places, grid = self.in_batch()
        length = grid.extra + grid.size
        flat = x.new_zeros(len(self.lengths) * length, x.shape[2]).index_copy(0, places, x[0])
        return flat.unflatten(0, (-1, length)), grid


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


@torch.compiler.disable
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
    places, canvas = grid.canvas(gap)  # all images at once: the gaps are their zero padding
    cells = x.new_zeros(canvas.size, x.shape[2]).index_copy(0, places, x[0])
    return to_tokens(conv(to_map(cells[None], canvas)))[0].index_select(0, places)[None]


def attend(q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor | None] | None, grid: Layout, key_grid: Layout,
           drop_rate: float) -> Tensor:
    """Returns the attention of queries to the keys of their image, `(B, N, C)`: `(1, T, C)` for packed images.

    The arguments are those of `Projected`, and the dropout of attention weights.
    """
    if isinstance(grid, Packing) and isinstance(key_grid, Packing) and biases is None and fits_varlen(q, drop_rate):
        q, k, v = (x[0].transpose(0, 1) for x in (q, k, v))  # (T, heads, C / heads)
        out = varlen.varlen_attn(q, k, v, grid.offsets, key_grid.offsets, grid.longest, key_grid.longest)
        return out.flatten(1)[None]
    groups = zip(groups_of(q, grid, dim=2), groups_of(k, key_grid, dim=2), groups_of(v, key_grid, dim=2),
                 biases or [None] * len(grids_of(grid)), strict=True)
    return joined([attend_alone(q, k, v, bias, drop_rate) for (q, _), (k, _), (v, _), bias in groups], grid)


def fits_varlen(q: Tensor, drop_rate: float) -> bool:
    """Returns whether torch attends to images of several sizes at once, which it does on a GPU in half precision."""
    return varlen is not None and q.is_cuda and q.dtype in HALF and drop_rate == 0.


def attend_alone(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, drop_rate: float) -> Tensor:
    """Returns the attention of images of one size, `(B, N, C)`."""
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=drop_rate)
    return out.transpose(1, 2).flatten(2)


def image_patches(x: Tensor, packing: Packing, side: int) -> Tensor:
    """Cuts images `(B, C, H, W)`, zero outside their sizes, into patches that are images of their own.

    Returns `(T, C, side, side)`. `packing` is that of the patches.
    """
    places, grid = packing.in_batch()
    padded = pad_or_crop(x, grid.height * side, grid.width * side)
    cells = padded.unflatten(3, (grid.width, side)).unflatten(2, (grid.height, side)).permute(0, 2, 4, 3, 5, 1)
    patches = cells.flatten(3).flatten(0, 2).index_select(0, places)  # (T, side * side * C)
    return patches.unflatten(1, (side, side, -1)).permute(0, 3, 1, 2)


def unpack(x: Tensor, grid: Layout) -> tuple[Tensor, Grid]:
    """Returns the tokens of the images of a batch, `(B, E + H * W, C)`, and their grid.

    Of packed ones, H and W are those of the largest grids, and tokens outside an image are zero.
    """
    return grid.unpack(x) if isinstance(grid, Packing) else (x, grid)


def mean_of_cells(x: Tensor, grid: Layout) -> Tensor:
    """Returns the mean of the cells of each image, `(B, C)`; they are unpacked, `(B, H * W, C)`."""
    return x.sum(dim=1) / grid.cells_of_images() if isinstance(grid, Packing) else x.mean(dim=1)
