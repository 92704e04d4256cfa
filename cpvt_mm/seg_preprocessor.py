"""The data preprocessor of mmseg, which also passes the sizes of the images to the backbone."""
from typing import Any

import torch

from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.batch_info import BatchInfo
from cpvt_mm.tokens.sizes import pad_or_crop
from openmmlab_tools.libraries import require

require('mmseg')

from mmseg.models.data_preprocessor import SegDataPreProcessor as MMSegDataPreProcessor  # noqa: E402
from mmseg.structures import SegDataSample  # noqa: E402

from cpvt_mm.batch_invariance import TakesSeveralSizes  # noqa: E402


@MODELS.register_module()
class SegDataPreProcessor(TakesSeveralSizes, MMSegDataPreProcessor):
    """mmseg's SegDataPreProcessor, with the same arguments. With `padding='exact'`, you must use this class.

    It also passes the size of each image before padding to the backbone. In tests, a batch may contain images of
    several sizes: each image is prepared as if it were alone, and then zero-padded to the largest height and width in
    the batch. Sliding inference fills batches with windows.
    """

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Returns `inputs`, `(B, C, H, W)` in float32, and `data_samples`, which are None if `data` has none."""
        images, samples = data['inputs'], data.get('data_samples')
        sizes = [image.shape[-2:] for image in images]
        if training or len(set(sizes)) == 1:
            return super().forward(data, training)
        # mmseg writes the padding into the data sample, and later removes this padding from the prediction.
        samples = [SegDataSample() for _ in images] if samples is None else samples
        each = [super(SegDataPreProcessor, self).forward(dict(inputs=[image], data_samples=[sample]))
                for image, sample in zip(images, samples, strict=True)]
        height, width = (max(sides) for sides in zip(*(prepared['inputs'].shape[2:] for prepared in each), strict=True))
        batch = torch.cat([pad_or_crop(prepared['inputs'], height, width) for prepared in each])
        for (h, w), sample in zip(sizes, samples, strict=True):
            sample.set_metainfo(dict(img_padding_size=(0, width - w, 0, height - h), pad_shape=(height, width)))
        return dict(inputs=BatchInfo.of_images(batch, sizes).attach(batch), data_samples=samples)
