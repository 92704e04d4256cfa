"""mmdet's data preprocessor for clips."""
from typing import Any

from cpvt_mm.registry import MODELS
from cpvt_mm.stack import require

from ..arguments import check_positive
from ..clips import ClipBatch
from ..valid_sizes import attach_valid_sizes

require('mmdet')

from mmdet.models.data_preprocessors import TrackDataPreprocessor as MMDetTrackDataPreprocessor  # noqa: E402


@MODELS.register_module()
class TrackDataPreprocessor(MMDetTrackDataPreprocessor):
    """mmdet's; its batches tell `PEG(ndim=3)` which images are frames of a clip, and `padding='exact'` their sizes.

    Args:
        args: mmdet's.
        window: In tests at most so many frames of a video see each other: it is cut into clips of this length, the last
            may be shorter. In training all frames do. Defaults to None: all.
        kwargs: mmdet's.

    Raises:
        ValueError: If `window` is no positive int.
    """

    def __init__(self, *args: Any, window: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if window is not None:
            check_positive('window', window)
        self.window = window

    def forward(self, data: dict[str, Any], training: bool = False) -> dict[str, Any]:
        """Does what mmdet's does; `inputs` is a `ClipBatch`, or images in a training with `use_det_processor`."""
        sizes = [clip.shape[-2:] for clip in data['inputs']]
        data = super().forward(data, training)
        if training and self.batch_augments is not None:
            # They may resize the batch, and take clips of one frame only.
            samples = data['data_samples'] if self.use_det_processor else [clip[0] for clip in data['data_samples']]
            sizes = [sample.img_shape[:2] for sample in samples]
        if training and self.use_det_processor:
            attach_valid_sizes(data['inputs'], sizes)
        else:
            data['inputs'] = ClipBatch.wrap(data['inputs'], sizes, None if training else self.window)
        return data
