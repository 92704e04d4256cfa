"""The sizes of images, and the frames of clips, which a data preprocessor passes to a backbone."""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from .grid import Size
from .tracing import eager

# A map, vectors or a sequence of tokens; or a pair: pooled features and distillation token.
Output: TypeAlias = Tensor | tuple[Tensor, Tensor]


@dataclass(frozen=True)
class BatchInfo:
    """The sizes of the images in a batch, and their frames. A data preprocessor passes it to the backbone.

    It is attached to the memory of the batch. So it survives wrappers, autocast, and views of all images or of one
    frame in a single clip. Copies and other parts of the batch lose it.
    """
    sizes: tuple[Size, ...]  # height and width of each image, or frame, in pixels without padding
    padded: Size  # height and width of the batch, in pixels
    length: int = 1  # frames of each clip; 1 for images
    window: int = 1  # how many consecutive frames a position encoding may mix

    def attach(self, batch: Tensor) -> Tensor:
        """Attaches this object to images `(B, C, H, W)` or clips `(N, T, C, H, W)`, and returns them."""
        batch.untyped_storage().cpvt_mm_info = self  # type: ignore[attr-defined]  # a storage is one object in Python
        return batch

    @classmethod
    def of_images(cls, batch: Tensor, sizes: Sequence[Size]) -> 'BatchInfo':
        """Describes images `(B, C, H, W)` with the given sizes."""
        return cls.of_clips(batch[:, None], sizes)

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


@eager  # torch.compile does not see the memory of a tensor; it continues after this function
def told_about(images: Tensor) -> BatchInfo | None:
    """Returns the `BatchInfo` of images `(B, C, H, W)`; None if several images have none.

    A single image without sizes fills its batch, and so does a window of a batch in sliding inference.
    """
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
