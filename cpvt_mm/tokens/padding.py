"""Batches of images of several sizes, and of clips: what is told about them, and `padding='exact'`."""
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from openmmlab_runs.errors import UserError

from .grid import Size, round_up
from .tracing import has_incomplete_clip, is_exported, unless_traced
from .validation import check_positive

# A map, vectors or a sequence of tokens; or a pair: pooled features and distillation token.
Output: TypeAlias = Tensor | tuple[Tensor, Tensor]

# padding='exact' pads each image to multiples of this: the coarsest stride, and `pad_size_divisor` in mmdet's configs.
PAD_SIZE_DIVISOR = 32
AUTOCAST_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class RunsImages(Protocol):
    """A backbone, as far as it is known here."""
    in_channels: int
    padding: Literal['exact'] | None
    spans_frames: bool

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...


@dataclass(frozen=True)
class BatchInfo:
    """Sizes and frames of a batch, which a data preprocessor tells the backbone.

    Wrappers, autocast, and views of all images, or of a frame of a single clip, keep it. Copies and parts lose it.
    """
    sizes: tuple[Size, ...]  # height and width of each image, or frame, in pixels without padding
    padded: Size  # height and width of the batch, in pixels
    length: int = 1  # frames of each clip; 1 for images
    window: int = 1  # how many consecutive frames a position encoding may mix

    def attach(self, batch: Tensor) -> Tensor:
        """Attaches itself to images `(B, C, H, W)` or clips `(N, T, C, H, W)`, and returns them."""
        batch.untyped_storage().cpvt_mm_info = self  # type: ignore[attr-defined]  # a storage is one object in Python
        return batch

    @classmethod
    def of_images(cls, batch: Tensor, sizes: Sequence[Size]) -> 'BatchInfo':
        """Describes images `(B, C, H, W)`, the sizes of which are given."""
        height, width = batch.shape[-2:]
        return cls(tuple((int(h), int(w)) for h, w in sizes), (height, width))

    @classmethod
    def of_clips(cls, batch: Tensor, sizes: Sequence[Size], window: int | None = None) -> 'BatchInfo':
        """Describes clips `(N, T, C, H, W)` of given sizes, in pixels without padding.

        `window` defaults to None: the whole clip. Raises a ValueError if a window would contain frames of two clips.
        """
        num_clips, length, _, height, width = batch.shape
        if window is not None and num_clips > 1 and length % min(window, length):
            raise ValueError(f'window is {window}, but must divide the {length} frames of each of the {num_clips} '
                             'videos of a batch: test with batch_size 1.')
        return cls(tuple((int(h), int(w)) for h, w in sizes for _ in range(length)), (height, width), length,
                   length if window is None else min(window, length))


@torch.compiler.disable  # torch.compile does not see the memory of a tensor; it continues after this function
def told_about(images: Tensor) -> BatchInfo | None:
    """Returns what is known of images `(B, C, H, W)`; None if nothing is. Windows of images fill their batch."""
    info: BatchInfo | None = getattr(images.untyped_storage(), 'cpvt_mm_info', None)
    height, width = images.shape[-2:]
    if (len(images) <= 1 and info is None) or (info and (height, width) != info.padded):
        return BatchInfo(((height, width),) * len(images), (height, width))
    if info and len(images) == len(info.sizes):
        return info
    if info and len(images) == 1 and len(info.sizes) == info.length:  # a frame of the only clip
        return BatchInfo(info.sizes[:1], info.padded)
    return None


class TellsSizes(nn.Module):
    """Mixin for data preprocessors that tells the sizes of the images without padding; list it before their class."""

    batch_augments: nn.Module | None

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Calls the library's class and attaches a `BatchInfo` to `inputs`."""
        sizes = [image.shape[-2:] for image in data['inputs']]
        data = super().forward(data, training)
        if training and self.batch_augments is not None:
            # Batch augments may resize the batch and then update img_shape of its samples. Clips have one frame here.
            images = [sample[0] if hasattr(sample, 'video_data_samples') else sample
                      for sample in data['data_samples']]
            sizes = [image.img_shape[:2] for image in images]
        data['inputs'] = self.describe(data['inputs'], sizes, training).attach(data['inputs'])
        return data

    def describe(self, inputs: Tensor, sizes: Sequence[Size], training: bool) -> BatchInfo:
        """Describes a batch with the height and width of each of its images without padding."""
        return BatchInfo.of_images(inputs, sizes)


@unless_traced
def check_images(backbone: RunsImages, x: Tensor, valid_sizes: Sequence[Size] | None = None) -> None:
    """Raises a ValueError or TypeError unless images fit a backbone; `valid_sizes` need `padding='exact'`."""
    channels = backbone.in_channels
    if not isinstance(x, Tensor):
        raise TypeError(f'images are a {type(x).__name__}, but must be a tensor (B, {channels}, H, W): '
                        'normalise an array (H, W, C), and give torch.from_numpy(array).permute(2, 0, 1)[None].')
    if x.dim() != 4 or x.shape[1] != channels or 0 in x.shape[2:]:
        raise ValueError(f'images have shape {tuple(x.shape)}, but must have (B, {channels}, H, W), H and W at least '
                         '1.')
    wanted = next(backbone.parameters()).dtype
    if x.dtype != wanted and not (x.dtype in AUTOCAST_DTYPES and torch.is_autocast_enabled(x.device.type)):
        raise ValueError(f'images are {x.dtype}, but the weights are {wanted}: normalise and convert the images, or '
                         'convert the weights.')
    if valid_sizes is not None:
        if backbone.padding is None:
            raise ValueError("valid_sizes are given, but padding is None: build the backbone with padding='exact'.")
        check_sizes(valid_sizes, x)


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


def sizes_and_frames(backbone: RunsImages, x: Tensor, valid_sizes: Sequence[Size] | None, num_frames: int | None
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
    if sizes is None and has_incomplete_clip(x, frames):
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
