"""A mixin for data preprocessors: their batches tell how large the images are."""
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..valid_sizes import Size, attach_valid_sizes


class TellsValidSizes(nn.Module):
    """Put in front of a data preprocessor's class, it attaches to each batch the sizes of its images without padding.

    A backbone with `padding='exact'` reads them (see `cpvt_mm.PyramidCPVT.forward`); nothing else changes.
    """

    batch_augments: nn.Module | None

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Does what the library's class does; `inputs` carry the sizes."""
        sizes = [image.shape[-2:] for image in data['inputs']]
        data = super().forward(data, training)
        if training and self.batch_augments is not None:
            # They may resize the batch; they then tell its samples. Clips that they take have one frame.
            images = [sample[0] if hasattr(sample, 'video_data_samples') else sample
                      for sample in data['data_samples']]
            sizes = [image.img_shape[:2] for image in images]
        data['inputs'] = self.tell_sizes(data['inputs'], sizes, training)
        return data

    def tell_sizes(self, inputs: Tensor, sizes: Sequence[Size], training: bool) -> Tensor:
        """Returns `inputs`, which now tell the height and width of each of them without padding."""
        attach_valid_sizes(inputs, sizes)
        return inputs
