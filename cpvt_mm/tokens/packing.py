"""Packs images of several sizes into one sequence without padding, for `padding='exact'`.

The tokens of all images are one sequence `(1, T, C)`. Linear layers and norms treat each token alone. Patches do not
overlap. So these layers do not need the borders between images. Attention, position encodings and other convolutions
need them, and a `Packing` contains them.
"""
import functools
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .grid import Grid, Size, to_map, to_tokens
from .moves import Move
from .sizes import round_up
from .tracing import cached, eager

try:  # it runs on GPUs only, and imports torch._dynamo, which takes a second
    varlen: Any = importlib.import_module('torch.nn.attention.varlen') if torch.cuda.is_available() else None
except ImportError:  # before torch 2.10
    varlen = None
if varlen and 'scale' not in inspect.signature(varlen.varlen_attn).parameters:  # torch 2.10
    varlen = None

HALF = (torch.float16, torch.bfloat16)  # the only dtypes of varlen_attn
FLASH_CAPABILITY = (8, 0)  # of the oldest GPUs on which it runs
Result = TypeVar('Result')


class Group(NamedTuple):
    """Images with the same grid, one after another in the sequence."""
    images: tuple[int, ...]  # their places in the batch
    grid: Grid

    @property
    def length(self) -> int:
        """Number of tokens in one image."""
        return self.grid.extra + self.grid.size

    @property
    def total(self) -> int:
        """Number of tokens in all images."""
        return self.length * len(self.images)


def built_once(method: Callable[..., Result]) -> Callable[..., Result]:
    """Decorates a method of `Packing` that makes indices, so that each of its results is made once, in eager code."""
    name, count, defaults = method.__name__, method.__code__.co_argcount - 1, method.__defaults__ or ()

    @eager
    def build(packing: 'Packing', *args: int) -> None:
        with torch.inference_mode(False):  # such tensors could not be used in training later
            packing.built[name, args] = method(packing, *args)

    @functools.wraps(method)
    def call(packing: 'Packing', *args: int) -> Result:
        args += defaults[len(defaults) - (count - len(args)):]  # a default that is given is the same
        if (name, args) not in packing.built:
            build(packing, *args)
        return packing.built[name, args]

    return call


class Packing:
    """The layout of a sequence `(1, T, C)` with the tokens of several images: groups of images of one grid each.

    `Grid` describes the methods. All grids have the same number of extra tokens. `patches` and `convolve` require
    sequences without extra tokens. Use `make_packing`, which caches packings.
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
        offsets = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
        self.offsets = offsets.to(device, non_blocking=True)  # (B + 1,), for varlen_attn
        self.clips = [Group(images[start:start + grid.frames], grid) for images, grid in groups
                      for start in range(0, len(images), grid.frames)]
        self.totals = [group.total for group in groups]
        self.places = torch.arange(self.total).split([clip.total for clip in self.clips])  # of each clip's tokens

    def with_grids(self, grids: Sequence[Grid]) -> 'Packing':
        return make_packing(tuple(group._replace(grid=grid) for group, grid in zip(self.groups, grids, strict=True)),
                            self.device)

    def split(self, x: Tensor, dim: int = 1) -> list[Tensor]:
        parts = x.split_with_sizes(self.totals, dim)
        return [part if len(group.images) == 1 else
                part.squeeze(0).unflatten(dim - 1, (len(group.images), -1)).movedim(dim - 1, 0)
                for part, group in zip(parts, self.groups, strict=True)]

    def join(self, parts: Sequence[Tensor], dim: int = 1) -> Tensor:
        return torch.cat([part if part.shape[0] == 1 else part.movedim(0, dim - 1).flatten(dim - 1, dim)[None]
                          for part in parts], dim)

    @property
    def grids(self) -> list[Grid]:
        return [group.grid for group in self.groups]

    def each(self, function: Callable[..., Tensor], x: Tensor, *args: int) -> Tensor:
        parts = self.split(x)
        changed = [grid.each(function, part, *args) for part, grid in zip(parts, self.grids, strict=True)]
        return x if all(new is part for new, part in zip(changed, parts, strict=True)) else self.join(changed)

    def cells(self, x: Tensor) -> Tensor:
        return self.join([part[:, self.extra:] for part in self.split(x)]) if self.extra else x

    def mean(self, x: Tensor) -> Tensor:
        return x.sum(dim=1) / self.cells_of_images()

    def count(self, x: Tensor) -> int:
        return len(self.clips)

    def draw(self, x: Tensor, keep: float) -> Tensor:
        lengths = torch.tensor(list(map(len, self.places))).to(x.device, non_blocking=True)
        drawn = x.new_empty(len(lengths)).bernoulli_(keep).div_(keep)
        return drawn.repeat_interleave(lengths, output_size=x.shape[1])[None, :, None]

    def part(self, clips: Sequence[int]) -> 'tuple[int, Tensor, Packing]':
        groups: dict[Grid, tuple[int, ...]] = {}
        for images, grid in (self.clips[clip] for clip in clips):
            groups[grid] = (*groups.get(grid, ()), *images)
        part = make_packing(tuple(Group(images, grid) for grid, images in groups.items()), self.device)
        return 1, torch.cat([self.places[clip] for clip in clips]), part

    def convolve(self, conv: nn.Module, x: Tensor, gap: int, stride: int = 1) -> Tensor:
        move, canvas = self.to_canvas(gap, stride)  # all images at once: the gaps are their zero padding
        convolved = to_tokens(conv(to_map(move(x), canvas)))
        of_output, _ = self.to_canvas(gap) if stride == 1 else self.coarser(stride).to_canvas(gap // stride)
        return of_output.back(convolved)

    def patches(self, x: Tensor, side: int, cell: int = 1) -> 'tuple[Tensor, Packing]':
        """Cuts the grids into patches: `(1, T, C)` -> `(1, P, side * side * C)`."""
        return self.to_patches(side)(x).view(1, -1, side * side * x.shape[2]), self.coarser(side, cell)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, biases: Sequence[Tensor | None] | None, keys: 'Layout',
               scale: float, drop_rate: float) -> Tensor:
        if isinstance(keys, Packing) and biases is None and fits_varlen(q, self, drop_rate):
            q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))  # (T, heads, channels)
            lengths = self.offsets, keys.offsets, self.longest, keys.longest
            return varlen.varlen_attn(q, k, v, *lengths, scale=scale)[None]
        groups = zip(self.grids, self.split(q, 2), keys.split(k, 2), keys.split(v, 2),
                     biases or [None] * len(self.groups), keys.grids, strict=True)
        return self.join([grid.attend(q, k, v, [bias], of_keys, scale, drop_rate)
                          for grid, q, k, v, bias, of_keys in groups])

    def _numbers(self) -> list[Tensor]:
        """Returns the places of the tokens in the sequence for each group, `(n, H, W)`; there are no extra tokens."""
        places = self.split(torch.arange(self.total)[None, :, None])
        return [part.view(-1, grid.height, grid.width) for part, grid in zip(places, self.grids, strict=True)]

    @built_once
    def to_patches(self, side: int) -> Move:
        """Returns the way from the sequence to the cells of patches, `(T, C)` -> `(P * side * side, C)`."""
        source = []
        for cells in self._numbers():
            height, width = (round_up(length, side) for length in cells.shape[1:])
            padded = F.pad(cells, (0, width - cells.shape[2], 0, height - cells.shape[1]), value=self.total)
            source.append(padded.view(-1, height // side, side, width // side, side).transpose(2, 3).flatten())
        return Move.from_source(torch.cat(source), self.total, self.device)

    @built_once
    def coarser(self, side: int, cell: int = 1) -> 'Packing':
        return self.with_grids([grid.coarser(side, cell) for grid in self.grids])

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
        return Move.from_source(canvas.flatten(), self.total, self.device), Grid(len(canvas), width)

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
        in_batch = (len(self.offsets) - 1) * (whole.extra + whole.size)  # tokens of the padded batch
        from_batch = Move.from_source(torch.cat(places), in_batch, self.device)
        return from_batch.back, whole

    @built_once
    def cells_of_images(self) -> Tensor:
        """Returns the number of cells in each image, `(B, 1)`, in the order of the batch."""
        cells = {image: group.grid.size for group in self.groups for image in group.images}
        return torch.tensor([cells[image] for image in range(len(cells))])[:, None].to(self.device, non_blocking=True)

    def unpack(self, x: Tensor) -> tuple[Tensor, Grid]:
        move, grid = self.to_batch()
        return move(x).view(-1, grid.extra + grid.size, x.shape[2]), grid

    def from_batch(self, x: Tensor) -> Tensor:
        """Returns the sequence `(1, T, C)` of a padded batch `(B, N, C)`; reverses `unpack`."""
        move, _ = self.to_batch()
        return move.back(x.flatten(0, 1)[None])


Layout: TypeAlias = Grid | Packing


def pack(groups: Mapping[tuple[Size, int], Sequence[int]], device: torch.device) -> Packing:
    """Returns the packing of images. `groups` maps rows, columns and frames of a clip to the images with this grid."""
    return make_packing(tuple(Group(tuple(images), Grid(height, width, frames=frames))
                              for ((height, width), frames), images in groups.items()), device)


@cached
def make_packing(groups: tuple[Group, ...], device: torch.device) -> Packing:
    """Returns the packing of groups of images. The result is cached."""
    return Packing(groups, device)


def fits_varlen(q: Tensor, packing: Packing, drop_rate: float) -> bool:
    """Returns whether torch attends to images of several sizes at once, which it does on a GPU in half precision."""
    return (packing.runs_varlen and q.dtype in HALF and q.shape[-1] % 8 == 0 and drop_rate == 0.
            and not torch.are_deterministic_algorithms_enabled())  # its backward pass adds in any order
