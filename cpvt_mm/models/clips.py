"""Batches of video clips. mmdet's models pass the frames of clips to their backbones as a batch of images."""
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch._C import DisableTorchFunctionSubclass  # torch's guide to tensor subclasses uses it

from .valid_sizes import Size, attach_valid_sizes


class ClipBatch(Tensor):
    """A batch of clips, `(N, T, C, H, W)`, that attaches clip length and image sizes to images taken from it.

    - All frames, `(N * T, C, H, W)`, carry the clip length and the image sizes without padding. `batch.flatten(0, 1)`
      gives them, or `batch[0]` for a batch of one clip.
    - One frame of each clip, `(N, C, H, W)`, carries the clip length 1 and the image sizes. `batch[:, 0]` gives it.
    - The result of any other operation is a plain tensor without attached data.

    Attributes:
        window: Number of consecutive frames that a position encoding may mix.
        sizes: Height and width of each clip, in pixels, without padding.
    """

    window: int
    sizes: list[Size]

    @classmethod
    def wrap(cls, clips: Tensor, sizes: Sequence[Size], window: int | None = None) -> 'ClipBatch':
        """Wraps a tensor `(N, T, C, H, W)` with a height and width for each clip.

        Args:
            clips: The frames, with padding.
            sizes: Height and width of each clip, in pixels, without padding.
            window: Maximum number of consecutive frames that a position encoding may mix. Defaults to None: all.

        Raises:
            ValueError: If a window would contain frames of two clips.
        """
        num_clips, num_frames = clips.shape[:2]
        if window is not None and num_clips > 1 and num_frames % min(window, num_frames):
            raise ValueError(f'window is {window}, but must divide the {num_frames} frames of each of the {num_clips} '
                             'videos of a batch: test with batch_size 1.')
        batch = clips.as_subclass(cls)
        batch.window = num_frames if window is None else min(window, num_frames)
        batch.sizes = [(int(height), int(width)) for height, width in sizes]
        return batch

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
                           kwargs: Mapping[str, Any] | None = None) -> Any:
        with DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            batch = args[0] if args else None
            if type(result) is Tensor and isinstance(batch, cls) and hasattr(batch, 'sizes'):
                batch._tell(result, one_of_each=func is Tensor.__getitem__ and isinstance(args[1], tuple))
        return result

    def _tell(self, images: Tensor, one_of_each: bool) -> None:
        """Attaches clip length and image sizes to all frames, or to one frame per clip; ignores other tensors.

        `one_of_each` says that `images` come from an index such as `batch[:, 0]`.
        """
        num_clips, num_frames = self.shape[:2]
        if images.shape == (num_clips * num_frames, *self.shape[2:]):
            attach_num_frames(images, self.window)
            attach_valid_sizes(images, [size for size in self.sizes for _ in range(num_frames)])
        elif one_of_each and images.shape == (num_clips, *self.shape[2:]):
            attach_num_frames(images, 1)
            attach_valid_sizes(images, self.sizes)


def attach_num_frames(batch: Tensor, num_frames: int) -> None:
    """Attaches the clip length to images `(B, C, H, W)`: each `num_frames` consecutive images are one clip."""
    # Tensors accept attributes of any name.
    batch.num_frames = num_frames  # type: ignore[attr-defined]


def num_frames_of(batch: Tensor) -> int | None:
    """Returns the clip length that `attach_num_frames` attached, or None."""
    return getattr(batch, 'num_frames', None)
