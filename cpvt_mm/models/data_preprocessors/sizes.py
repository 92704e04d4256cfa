"""A mixin for data preprocessors: their batches tell how large the images are."""
from typing import Any

from torch import nn

from ..valid_sizes import attach_valid_sizes


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
            # They may resize the batch; they then tell its samples.
            sizes = [sample.img_shape[:2] for sample in data['data_samples']]
        attach_valid_sizes(data['inputs'], sizes)
        return data
