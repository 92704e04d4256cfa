"""Batches of images of several sizes and of clips: what data preprocessors tell about them, and `padding='exact'`."""
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from .grid import pad_or_crop, round_up

# Height and width in pixels.
Size: TypeAlias = tuple[int, int]

# A map, vectors or a sequence of tokens; or a pair: pooled features and distillation token.
Output: TypeAlias = Tensor | tuple[Tensor, Tensor]

# padding='exact' pads each image to multiples of this: the coarsest stride, and `pad_size_divisor` in mmdet's configs.
PAD_SIZE_DIVISOR = 32


@dataclass(frozen=True)
class BatchInfo:
    """Sizes and frames of a batch of images or of clips, which a data preprocessor tells the backbone.

    It stays with the memory of the batch, so models may pass a view of it to their backbone: all frames of its clips
    (`batch.flatten(0, 1)`, or `batch[0]` for one clip), or one frame of each (`batch[:, 0]`). `Clips` gives it to
    copies of one frame of each. It also survives model wrappers and autocast. Other tensors that are computed from the
    batch do not have it.

    Attributes:
        sizes: Height and width of each image, or of each clip, in pixels, without padding.
        padded: Height and width of the batch, in pixels.
        length: Frames of each clip; 1 for images.
        window: Maximum number of consecutive frames that a position encoding may mix.
    """
    sizes: tuple[Size, ...]
    padded: Size
    length: int = 1
    window: int = 1

    def attach(self, batch: Tensor) -> Tensor:
        """Attaches itself to images `(B, C, H, W)` or clips `(N, T, C, H, W)`, and returns them; clips as `Clips`."""
        batch.untyped_storage().cpvt_mm_info = self  # type: ignore[attr-defined]  # a storage is one object in Python
        return batch.as_subclass(Clips) if batch.dim() == 5 else batch

    @classmethod
    def of(cls, batch: Tensor) -> 'BatchInfo | None':
        """Returns what is attached to the memory of a batch."""
        return getattr(batch.untyped_storage(), 'cpvt_mm_info', None)

    @classmethod
    def of_images(cls, batch: Tensor, sizes: Sequence[Size]) -> 'BatchInfo':
        """Describes images `(B, C, H, W)`, the sizes of which are given."""
        height, width = batch.shape[-2:]
        return cls(tuple((int(h), int(w)) for h, w in sizes), (height, width))

    @classmethod
    def of_clips(cls, batch: Tensor, sizes: Sequence[Size], window: int | None = None) -> 'BatchInfo':
        """Describes clips `(N, T, C, H, W)`, the sizes of which are given.

        Args:
            batch: The frames, with padding.
            sizes: Height and width of each clip, in pixels, without padding.
            window: See `BatchInfo`. Defaults to None: the whole clip.

        Raises:
            ValueError: If a window would contain frames of two clips.
        """
        num_clips, length, _, height, width = batch.shape
        if window is not None and num_clips > 1 and length % min(window, length):
            raise ValueError(f'window is {window}, but must divide the {length} frames of each of the {num_clips} '
                             'videos of a batch: test with batch_size 1.')
        return cls(tuple((int(h), int(w)) for h, w in sizes), (height, width), length,
                   length if window is None else min(window, length))


class Clips(Tensor):
    """Clips `(N, T, C, H, W)` from a data preprocessor; all that is computed from them are plain tensors.

    Some of mmdet's models copy one frame of each clip with `clips[arange(N), frames]`. The copy keeps the sizes.
    """

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        """Calls the function, and attaches a `BatchInfo` to one frame of each clip, `(N, C, H, W)`."""
        result = super().__torch_function__(func, types, args, kwargs or {})
        if not isinstance(result, cls):
            return result
        frames = result.as_subclass(Tensor)
        if func is Tensor.__getitem__ and isinstance(args[1], tuple) and not isinstance(args[1][0], int):
            info = BatchInfo.of(args[0])
            if info is not None and BatchInfo.of(frames) is None and len(frames) == len(info.sizes):
                BatchInfo(info.sizes, info.padded).attach(frames)
        return frames


class Told(NamedTuple):
    """Sizes and frames of the images that reach a backbone, as far as they are known.

    Attributes:
        sizes: Height and width of each image in pixels, without padding. Defaults to None: they fill the batch.
        frames: Frames of a clip; the frames of a clip are consecutive images. Defaults to 1.
        lost: Whether nothing is known of several images. Defaults to False.
    """
    sizes: Sequence[Size] | None = None
    frames: int = 1
    lost: bool = False


@torch.compiler.disable  # torch.compile does not see the memory of a tensor; it continues after this function
def told_about(images: Tensor) -> Told:
    """Returns what `BatchInfo` tells about images `(B, C, H, W)`. Windows of the images fill their batch."""
    info = BatchInfo.of(images)
    if info is not None and images.stride(2) < images.stride(3):
        return Told(lost=True)  # rows and columns are exchanged
    if info is not None and tuple(images.shape[-2:]) != info.padded:
        return Told()
    if info is not None and len(images) == len(info.sizes) * info.length:
        return Told(tuple(size for size in info.sizes for _ in range(info.length)), info.window)
    # One frame of each clip lies a clip further in memory than the last; frames of one clip are neighbours.
    if info is not None and len(images) == len(info.sizes) and (
            len(images) == 1 or images.stride(0) == info.length * images[0].numel()):
        return Told(info.sizes)
    return Told(lost=len(images) > 1 or info is not None)


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


def encode_in_groups(encode: Callable[[Tensor, int], tuple[Output, ...]],
                     fit: Callable[[tuple[Output, ...], Size, Size], tuple[Output, ...]],
                     x: Tensor, sizes: Sequence[Size] | None, frames: int, multiple: int) -> tuple[Output, ...]:
    """Encodes images of several sizes, each as if it were alone.

    Images, or clips, of the same padded size run together; so the padding of the batch is not computed.

    Args:
        encode: Computes the outputs of images that fill their batch, in clips of a number of frames.
        fit: Crops or zero-pads the outputs for images of one size, in pixels, to those for images of another size.
        x: `(B, C, H, W)`.
        sizes: Height and width of each image without padding. None: all images fill the batch.
        frames: Frames of a clip; the last clip may be shorter.
        multiple: Each image is zero-padded to multiples of this, in pixels.

    Returns:
        The outputs in the shapes of outputs for images of the size of `x`. Maps are zero outside an image.
    """
    height, width = x.shape[2:]
    whole = height, width

    def encode_group(images: Tensor, frames: int) -> tuple[Output, ...]:
        padded = round_up(images.shape[2], multiple), round_up(images.shape[3], multiple)
        return fit(encode(pad_or_crop(images, *padded), frames), padded, whole)

    if sizes is None:
        return encode_group(x, frames)
    outs, order = [], []
    for (padded, length), members in group_clips(sizes, frames, multiple).items():
        images = [pad_or_crop(x[i:i + 1, :, :sizes[i][0], :sizes[i][1]], *padded) for i in members]
        outs.append(encode_group(torch.cat(images), length))
        order += members
    places = sorted(range(len(order)), key=order.__getitem__)
    return tuple(_join(parts, places) for parts in zip(*outs, strict=True))


def group_clips(sizes: Sequence[Size], frames: int, multiple: int) -> dict[tuple[Size, int], list[int]]:
    """Groups images by the size and the number of frames of their clip.

    Args:
        sizes: Height and width of each image. The height and width of a clip are the maxima over its frames.
        frames: Frames of a clip; the last clip may be shorter. With 1, each image is a clip.
        multiple: Sizes are rounded up to multiples of this, in pixels.

    Returns:
        Maps (size, number of frames) to the indices of the images in the batch, clip by clip.
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


def _join(parts: Sequence[Output], places: Sequence[int]) -> Output:
    """Joins the parts of one output; `places` gives the index of each image in the concatenated parts."""
    if isinstance(parts[0], tuple):
        first, second = zip(*parts, strict=True)
        return _join_tensors(first, places), _join_tensors(second, places)
    return _join_tensors([part for part in parts if isinstance(part, Tensor)], places)


def _join_tensors(parts: Sequence[Tensor], places: Sequence[int]) -> Tensor:
    images = [image for part in parts for image in part.split(1)]  # an index of a GPU's tensor would wait for the GPU
    return torch.cat([images[place] for place in places])
