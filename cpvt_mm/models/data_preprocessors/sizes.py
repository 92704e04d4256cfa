"""A mixin for data preprocessors that attaches image sizes to batches."""
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..valid_sizes import Size, attach_valid_sizes


class TellsValidSizes(nn.Module):
    """Mixin that attaches the sizes of the images without padding to each batch.

    List it before the data preprocessor's class. A backbone with `padding='exact'` reads the sizes (see
    `cpvt_mm.PyramidCPVT.forward`).
    """

    batch_augments: nn.Module | None

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Calls the library's class and attaches the sizes to `inputs`."""
        sizes = [image.shape[-2:] for image in data['inputs']]
        data = super().forward(data, training)
        if training and self.batch_augments is not None:
            # Batch augments may resize the batch and then update img_shape of its samples. Clips have one frame here.
            images = [sample[0] if hasattr(sample, 'video_data_samples') else sample
                      for sample in data['data_samples']]
            sizes = [image.img_shape[:2] for image in images]
        data['inputs'] = self.tell_sizes(data['inputs'], sizes, training)
        return data

    def tell_sizes(self, inputs: Tensor, sizes: Sequence[Size], training: bool) -> Tensor:
        """Attaches the height and width of each image without padding to `inputs`, and returns `inputs`."""
        attach_valid_sizes(inputs, sizes)
        return inputs
