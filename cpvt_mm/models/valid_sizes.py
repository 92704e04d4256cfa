"""The sizes of the images in a padded batch, and which clips of them are alike."""
from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from .grid import round_up

# Height and width in pixels.
Size: TypeAlias = tuple[int, int]


def attach_valid_sizes(batch: Tensor, sizes: Sequence[Size]) -> None:
    """Attaches to a batch `(B, C, H, W)` the sizes of its images without padding.

    They travel with this very tensor, through wrappers of the model and autocast; what is computed from it has none.
    """
    # Tensors take attributes of any name.
    batch.valid_sizes = [(int(height), int(width)) for height, width in sizes]  # type: ignore[attr-defined]


def valid_sizes_of(batch: Tensor) -> list[Size] | None:
    """The sizes that `attach_valid_sizes` gave it, or None."""
    return getattr(batch, 'valid_sizes', None)


def check_valid_sizes(sizes: Sequence[Size], batch: Tensor) -> list[Size]:
    """The sizes as tuples of ints; raises a ValueError if they are not those of images in `batch`, `(B, C, H, W)`."""
    if len(sizes) != len(batch):
        raise ValueError(f'valid_sizes are {len(sizes)}, but must be a height and a width for each of the '
                         f'{len(batch)} images of the batch.')
    for i, size in enumerate(sizes):
        if not isinstance(size, Sequence) or len(size) != 2 or any(
                side not in range(1, limit + 1) for side, limit in zip(size, batch.shape[2:], strict=True)):
            raise ValueError(f'valid_sizes[{i}] is {size}, but must be a height and a width, whole numbers of at least '
                             f'1 and at most those of the batch, {tuple(batch.shape[2:])}.')
    return [(int(height), int(width)) for height, width in sizes]


def alike(sizes: Sequence[Size], num_frames: int, multiple: int) -> dict[tuple[Size, int], list[range]]:
    """Which clips are equally long, and equally large once their sides are completed to multiples.

    Args:
        sizes: Height and width of each image. A clip is as high and wide as the highest and widest of its frames.
        num_frames: Frames of a clip; the last clip may be shorter. 1: each image is for itself.
        multiple: Pixels.

    Returns:
        By size and number of frames: the clips, each as the places of its frames in the batch.
    """
    clips: dict[tuple[Size, int], list[range]] = {}
    for start in range(0, len(sizes), num_frames):
        frames = range(start, min(start + num_frames, len(sizes)))
        height, width = (round_up(max(sides), multiple) for sides in zip(*(sizes[i] for i in frames), strict=True))
        clips.setdefault(((height, width), len(frames)), []).append(frames)
    return clips
