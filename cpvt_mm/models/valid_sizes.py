"""Image sizes in a padded batch, and the grouping of clips by size."""
from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from .grid import round_up

# Height and width in pixels.
Size: TypeAlias = tuple[int, int]


def attach_valid_sizes(batch: Tensor, sizes: Sequence[Size]) -> None:
    """Attaches the sizes of the images without padding to a batch `(B, C, H, W)`.

    The sizes stay with this tensor object, also through model wrappers and autocast. Tensors that are computed from it
    do not have them.

    Args:
        batch: The padded images.
        sizes: Height and width of each image without padding, in pixels.
    """
    # Tensors accept attributes of any name.
    batch.valid_sizes = [(int(height), int(width)) for height, width in sizes]  # type: ignore[attr-defined]


def valid_sizes_of(batch: Tensor) -> list[Size] | None:
    """Returns the sizes that `attach_valid_sizes` attached, or None."""
    return getattr(batch, 'valid_sizes', None)


def check_valid_sizes(sizes: Sequence[Size], batch: Tensor) -> list[Size]:
    """Returns the sizes as tuples of ints; raises a ValueError unless they fit the images of `batch`, `(B, C, H, W)`.
    """
    if len(sizes) != len(batch):
        raise ValueError(f'valid_sizes has {len(sizes)} sizes, but must have a height and a width for each of the '
                         f'{len(batch)} images of the batch.')
    for i, size in enumerate(sizes):
        if not isinstance(size, Sequence) or len(size) != 2 or any(
                side not in range(1, limit + 1) for side, limit in zip(size, batch.shape[2:], strict=True)):
            raise ValueError(f'valid_sizes[{i}] is {size}, but must be a height and a width, whole numbers of at least '
                             f'1 and at most those of the batch, {tuple(batch.shape[2:])}.')
    return [(int(height), int(width)) for height, width in sizes]


def alike(sizes: Sequence[Size], num_frames: int, multiple: int) -> dict[tuple[Size, int], list[range]]:
    """Groups clips by their number of frames and by their size, rounded up to multiples of `multiple`.

    Args:
        sizes: Height and width of each image. The height and width of a clip are the maxima over its frames.
        num_frames: Frames of a clip; the last clip may be shorter. With 1, each image is a clip.
        multiple: The multiple, in pixels.

    Returns:
        Maps (size, number of frames) to the clips; each clip is the range of its frames' indices in the batch.
    """
    clips: dict[tuple[Size, int], list[range]] = {}
    for start in range(0, len(sizes), num_frames):
        frames = range(start, min(start + num_frames, len(sizes)))
        height, width = (round_up(max(sides), multiple) for sides in zip(*(sizes[i] for i in frames), strict=True))
        clips.setdefault(((height, width), len(frames)), []).append(frames)
    return clips
