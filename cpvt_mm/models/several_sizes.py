"""Runs images of several sizes, and clips, in one pass: for `padding='exact'`, and for encodings that span frames.

Images that are padded to the same size run as a batch. Other images run as one packed sequence (`tokens.packing`).
"""
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cpvt_mm.tokens.batch_info import Output, told_about
from cpvt_mm.tokens.grid import Size
from cpvt_mm.tokens.packing import Packing, pack
from cpvt_mm.tokens.sizes import grid_size, pad_or_crop, round_up
from cpvt_mm.tokens.tracing import eager, is_exported, is_traced
from cpvt_mm.tokens.validation import check_positive
from openmmlab_tools.errors import UserError

from .layers import PatchEmbed

# padding='exact' pads each image to multiples of this: the coarsest stride, and `pad_size_divisor` in mmdet's configs.
PAD_SIZE_DIVISOR = 32


def arrange(x: Tensor, valid_sizes: Sequence[Size] | None, num_frames: int | None, is_exact: bool, spans_frames: bool,
            patch_size: int) -> tuple[Tensor, int, Packing | None]:
    """Returns the images of a batch, zero-padded; the frames of a clip; and for several sizes the packing of patches.

    The first three arguments are the same as in `Backbone.forward`. `is_exact` is whether `padding` is 'exact'; if not,
    only clips of several lengths are packed. `spans_frames` is whether encodings mix frames.
    """
    sizes = known_sizes(x, valid_sizes) if is_exact else None
    frames = known_frames(x, num_frames) if spans_frames else 1
    if sizes is None and not is_traced(x) and len(x) % frames:
        sizes = [(x.shape[2], x.shape[3])] * len(x)
    multiple = PAD_SIZE_DIVISOR if is_exact else 1
    padded, packing = (round_up(x.shape[2], multiple), round_up(x.shape[3], multiple)), None
    if sizes is not None:
        x, groups = within_sizes(x, sizes), group_clips(sizes, frames, multiple)
        padded, frames = next(iter(groups))
        if len(groups) > 1:
            padded, frames = padded_size(sizes, multiple), 1
            packing = pack({(grid_size(size, patch_size), length): images
                            for (size, length), images in groups.items()}, x.device)
    return pad_or_crop(x, *padded), frames, packing


arrange_eagerly = eager(arrange)  # torch.compile leaves it to Python, where a graph ends; exported code records it


@eager
def prepare(backbone: nn.Module, packing: Packing) -> None:
    """Makes indices that a pass will need; compiled code would depend on the sizes if it made them."""
    packing.to_batch()
    packing.to_canvas(1)
    _, *later = (module for module in backbone.modules() if isinstance(module, PatchEmbed))  # the first is the stem
    for embed in later:
        side = embed.patch_size
        packing.to_canvas(side, side) if embed.overlaps else packing.to_patches(side)
        coarser = packing.coarser(side, embed.cell)
        packing = coarser if embed.cell == 1 else packing  # a reduction makes keys only
        packing.to_batch()
        packing.to_canvas(1)


def check_sizes(sizes: Sequence[Size], batch: Tensor) -> None:
    """Raises a ValueError unless the sizes fit the images of `batch`, `(B, C, H, W)`."""
    if len(sizes) != len(batch):
        raise ValueError(f'valid_sizes has {len(sizes)} sizes, but must have a height and a width for each of the '
                         f'{len(batch)} images of the batch.')
    for i, size in enumerate(sizes):
        if not isinstance(size, Sequence) or len(size) != 2 or any(
                isinstance(side, float) or side not in range(1, limit + 1)
                for side, limit in zip(size, batch.shape[2:], strict=True)):
            raise ValueError(f'valid_sizes[{i}] is {size}, but must be a height and a width: whole numbers from 1 to '
                             f'the height and width of the batch, {tuple(batch.shape[2:])}.')


def known_sizes(x: Tensor, valid_sizes: Sequence[Size] | None) -> Sequence[Size] | None:
    """Returns the sizes of images without padding, given or told; None if the images fill the batch.

    Exported code has no memory of a batch: its images fill it. Raises a UserError if nothing tells the sizes.
    """
    sizes = valid_sizes
    if sizes is None and not is_exported():
        info = told_about(x)
        if info is None:
            raise UserError("padding='exact' needs the size of each image, but the batch does not carry it: use "
                            'data_preprocessor.type cpvt_mm.DetDataPreprocessor or cpvt_mm.SegDataPreProcessor, or '
                            'pass valid_sizes to the backbone.')
        sizes = info.sizes
    fills_batch = sizes is None or all(tuple(size) == tuple(x.shape[2:]) for size in sizes)
    return None if fills_batch else sizes


def known_frames(x: Tensor, num_frames: int | None) -> int:
    """Returns the frames of a clip, given or told; 1 in exported code, and with a warning if nothing tells them."""
    if num_frames is not None:
        check_positive('num_frames', num_frames)
        return num_frames
    if is_exported():
        return 1
    info = told_about(x)
    if info is None:
        warnings.warn('PEG(ndim=3) treats each image as a clip of its own, because the batch does not carry the number '
                      'of frames per clip: set data_preprocessor.type to the TrackDataPreprocessor of projects/video, '
                      'or pass num_frames.', stacklevel=1)
        return 1
    return info.window


def within_sizes(x: Tensor, sizes: Sequence[Size]) -> Tensor:
    """Returns images `(B, C, H, W)` with zeros outside their sizes in pixels."""
    heights, widths = (torch.tensor(sides, device='cpu')[:, None].to(x.device, non_blocking=True)
                       for sides in zip(*sizes, strict=True))
    rows = torch.arange(x.shape[2], device=x.device) < heights
    columns = torch.arange(x.shape[3], device=x.device) < widths
    return torch.where(rows[:, None, :, None] & columns[:, None, None], x, 0)


def group_clips(sizes: Sequence[Size], frames: int, multiple: int) -> dict[tuple[Size, int], list[int]]:
    """Maps (size, frames) of clips to the indices of their images, clip by clip; the last clip may have fewer `frames`.

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
    """Returns the output for one image, as a batch with one image."""
    if isinstance(output, tuple):
        return output[0][index:index + 1], output[1][index:index + 1]
    return output[index:index + 1]
