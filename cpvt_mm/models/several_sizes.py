"""Images of several sizes, and clips, in one pass: for `padding='exact'`, and encodings that span frames.

Images of one padded size run as a batch, others as one packed sequence (`tokens.packing`).
"""
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from cpvt_mm.tokens.batch_info import Output, told_about
from cpvt_mm.tokens.coordinates import eager, grid_size, pad_or_crop, round_up
from cpvt_mm.tokens.grid import Grid, Size, to_tokens
from cpvt_mm.tokens.layout import Cells
from cpvt_mm.tokens.packing import Packing, pack
from cpvt_mm.tokens.tracing import is_traced
from cpvt_mm.tokens.validation import check_positive
from openmmlab_runs.errors import UserError

from .layers import PatchEmbed

if TYPE_CHECKING:
    from .backbone import Backbone

# padding='exact' pads each image to multiples of this: the coarsest stride, and `pad_size_divisor` in mmdet's configs.
PAD_SIZE_DIVISOR = 32
TELLS_EXPORT = torch.__version__ >= '2.13'


class Cut(NamedTuple):
    """Pixels that are cut for the embedding of patches: they are patches, or a canvas if patches overlap."""
    packing: Packing  # of the patches

    def patches(self, x: Tensor, side: int, cell: int = 1) -> tuple[Tensor, Packing]:
        return x, self.packing

    def convolve(self, conv: nn.Module, x: Tensor, gap: int, stride: int = 1) -> Tensor:
        move, _ = self.packing.to_canvas(1)
        return move.back(to_tokens(conv(x)))

    def coarser(self, side: int, cell: int = 1) -> Packing:
        return self.packing


def forward_packed(backbone: 'Backbone', images: Sequence[Tensor], num_frames: int | None) -> list[tuple[Output, ...]]:
    """Computes what `Backbone.forward_packed` describes."""
    sizes = [(image.shape[1], image.shape[2]) for image in images]
    whole = padded_size(sizes, 1)
    outs = backbone(torch.cat([pad_or_crop(image[None], *whole) for image in images]), sizes, num_frames)
    return [backbone.fit_outputs(tuple(image_of(out, i) for out in outs), whole, size) for i, size in enumerate(sizes)]


def is_exported() -> bool:
    """Returns whether `torch.export` or `torch.jit.trace` records the running code."""
    if torch.jit.is_tracing():  # type: ignore[attr-defined]  # public, but not re-exported explicitly
        return True
    if not hasattr(torch.compiler, 'is_exporting'):  # torch 2.6
        return False
    # Before torch 2.13, is_exporting() is True for torch.compile, too.
    return torch.compiler.is_exporting() and (TELLS_EXPORT or not torch.compiler.is_dynamo_compiling())


def arrange(backbone: 'Backbone', x: Tensor, valid_sizes: Sequence[Size] | None, num_frames: int | None,
            traced: bool) -> tuple[Tensor, Cells, Size]:
    """Does what `_arrange` does. torch.compile leaves it to Python, where a graph ends; exported code records it."""
    run = _arrange if is_exported() else _arrange_eagerly
    return run(backbone, x, valid_sizes, num_frames, traced)


def _arrange(backbone: 'Backbone', x: Tensor, valid_sizes: Sequence[Size] | None, num_frames: int | None,
             traced: bool) -> tuple[Tensor, Cells, Size]:
    """Finds out how the images of a batch run. Returns their pixels, and the size of the largest padded one.

    Images of one padded size are pixels `(B, H * W, in_channels)` of a grid, others are `Cut`.
    """
    sizes, frames = sizes_and_frames(backbone, x, valid_sizes, num_frames)
    multiple = PAD_SIZE_DIVISOR if backbone.padding else 1
    padded = round_up(x.shape[2], multiple), round_up(x.shape[3], multiple)
    if sizes is not None:
        x, groups = within_sizes(x, sizes, multiple), group_clips(sizes, frames, multiple)
        if len(groups) > 1:
            packing = pack({(grid_size(size, backbone.patch_size), length): images
                            for (size, length), images in groups.items()}, x.device)
            if traced:
                _, *later = (module for module in backbone.modules() if isinstance(module, PatchEmbed))
                prepare(later, packing)
            cut = image_canvas if backbone.stem.overlaps else image_patches
            return cut(x, packing, backbone.patch_size), Cut(packing), padded_size(sizes, multiple)
        padded, frames = next(iter(groups))
    return to_tokens(pad_or_crop(x, *padded)), Grid(*padded, frames=frames, is_traced=traced), padded


_arrange_eagerly = eager(_arrange)


def prepare(embeds: Sequence[PatchEmbed], packing: Packing) -> None:
    """Makes indices that a pass will need; compiled code would depend on the sizes if it made them."""
    for embed in (None, *embeds):
        if embed:
            side = embed.patch_size
            packing.to_canvas(side, side) if embed.overlaps else packing.to_patches(side)
            coarser = packing.coarser(side, embed.cell)
            packing = coarser if embed.cell == 1 else packing  # a reduction makes keys only
        packing.to_batch()
        packing.to_canvas(1)


def image_patches(x: Tensor, packing: Packing, side: int) -> Tensor:
    """Cuts images `(B, C, H, W)`, zero outside their sizes, into patches, `(1, P, side * side * C)`.

    `packing` is that of the patches.
    """
    move, grid = packing.to_batch()
    padded = pad_or_crop(x, grid.height * side, grid.width * side)
    cells = padded.unflatten(3, (grid.width, side)).unflatten(2, (grid.height, side)).permute(0, 2, 4, 3, 5, 1)
    return move.back(cells.flatten(3).flatten(0, 2)[None])


def image_canvas(x: Tensor, packing: Packing, side: int) -> Tensor:
    """Puts images `(B, C, H, W)`, zero outside their sizes, one below another on a canvas, `(1, C, H', W')`.

    `packing` is that of patches of `side` pixels; `side` rows of zeros are below each image, as in its `to_canvas(1)`.
    """
    width = max(grid.width for grid in packing.grids) * side
    rows = [pad_or_crop(x[image:image + 1], (grid.height + 1) * side, width)
            for images, grid in packing.groups for image in images]
    return torch.cat(rows, dim=2)


def check_sizes(sizes: Sequence[Size], batch: Tensor) -> None:
    """Raises a ValueError unless the sizes fit the images of `batch`, `(B, C, H, W)`."""
    if len(sizes) != len(batch):
        raise ValueError(f'valid_sizes has {len(sizes)} sizes, but must have a height and a width for each of the '
                         f'{len(batch)} images of the batch.')
    for i, size in enumerate(sizes):
        if not isinstance(size, Sequence) or len(size) != 2 or any(
                isinstance(side, float) or side not in range(1, limit + 1)
                for side, limit in zip(size, batch.shape[2:], strict=True)):
            raise ValueError(f'valid_sizes[{i}] is {size}, but must be a height and a width, whole numbers of at least '
                             f'1 and at most those of the batch, {tuple(batch.shape[2:])}.')


def sizes_and_frames(backbone: 'Backbone', x: Tensor, valid_sizes: Sequence[Size] | None, num_frames: int | None
                     ) -> tuple[Sequence[Size] | None, int]:
    """Returns the sizes of images without padding, and the frames of a clip; see `Backbone.forward`.

    Sizes are None if the images fill the batch, or need not be known. Raises a UserError if nothing tells needed sizes.
    """
    is_recorded = is_exported()  # without the memory of a batch: its images fill it, and each is a clip
    told = None if is_recorded else told_about(x)
    sizes, frames = valid_sizes, 1
    if backbone.padding and sizes is None and not is_recorded:
        if told is None:
            raise UserError("padding='exact' needs the size of each image, but the batch does not carry it: use "
                            'data_preprocessor.type cpvt_mm.DetDataPreprocessor or cpvt_mm.SegDataPreProcessor, or '
                            'pass valid_sizes to the backbone.')
        sizes = told.sizes
    if sizes is not None and all(tuple(size) == tuple(x.shape[2:]) for size in sizes):
        sizes = None
    if backbone.spans_frames:
        if num_frames is not None:
            check_positive('num_frames', num_frames)
        elif told is None and not is_recorded:
            warnings.warn(f'PEG(ndim=3) of {type(backbone).__name__} treats each image as a clip of its own, because '
                          'the batch does not carry the number of frames per clip: use data_preprocessor.type '
                          'the TrackDataPreprocessor of projects/video, or pass num_frames.', stacklevel=1)
        frames = num_frames or (told.window if told else 1)
    if sizes is None and not is_traced(x) and len(x) % frames:
        sizes = [(x.shape[2], x.shape[3])] * len(x)
    return sizes, frames


def within_sizes(x: Tensor, sizes: Sequence[Size], multiple: int) -> Tensor:
    """Returns images `(B, C, H, W)` with zeros outside their sizes in pixels, up to the next multiples."""
    if not any(side % multiple for size in sizes for side in size):
        return x
    heights, widths = (torch.tensor(sides, device='cpu')[:, None].to(x.device, non_blocking=True)
                       for sides in zip(*sizes, strict=True))
    rows = torch.arange(x.shape[2], device=x.device) < heights
    columns = torch.arange(x.shape[3], device=x.device) < widths
    return torch.where(rows[:, None, :, None] & columns[:, None, None], x, 0)


def group_clips(sizes: Sequence[Size], frames: int, multiple: int) -> dict[tuple[Size, int], list[int]]:
    """Maps (size, frames) of clips to the indices of their images, clip by clip; the last one may have fewer `frames`.

    A size is the maximum of its images' heights and widths, rounded up to multiples of `multiple`, in pixels.
    """
    groups: dict[tuple[Size, int], list[int]] = {}
    for start in range(0, len(sizes), frames):
        members = range(start, min(start + frames, len(sizes)))
        padded = padded_size([sizes[i] for i in members], multiple)
        groups.setdefault((padded, len(members)), []).extend(members)
    return groups


def padded_size(sizes: Sequence[Size], multiple: int = PAD_SIZE_DIVISOR) -> Size:
    """Returns the largest height and the largest width of images, rounded up to multiples in pixels."""
    height, width = (round_up(max(sides), multiple) for sides in zip(*sizes, strict=True))
    return height, width


def image_of(output: Output, index: int) -> Output:
    """Returns the output of one image of a batch, as a batch of one."""
    if isinstance(output, tuple):
        return output[0][index:index + 1], output[1][index:index + 1]
    return output[index:index + 1]
