"""The data preprocessors of mmdet and mmseg, which also tell the backbone about the batch."""
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cpvt_mm.models.grid import Size
from cpvt_mm.models.padding import BatchInfo, TellsSizes
from cpvt_mm.models.validation import check_positive
from cpvt_mm.registry import MODELS
from openmmlab_runs.libraries import require

require('mmdet', 'mmseg')

from mmdet.models.data_preprocessors import DetDataPreprocessor as MMDetDataPreprocessor  # noqa: E402
from mmdet.models.data_preprocessors import TrackDataPreprocessor as MMDetTrackDataPreprocessor  # noqa: E402
from mmseg.models.data_preprocessor import SegDataPreProcessor as MMSegDataPreProcessor  # noqa: E402


@MODELS.register_module()
class DetDataPreprocessor(TellsSizes, MMDetDataPreprocessor):
    """mmdet's DetDataPreprocessor with the same arguments. It tells the image sizes, for `padding='exact'`."""


@MODELS.register_module()
class TrackDataPreprocessor(TellsSizes, MMDetTrackDataPreprocessor):
    """mmdet's TrackDataPreprocessor, which tells the clip length (for `PEG(ndim=3)`) and image sizes
    (`padding='exact'`).

    Args:
        window: Tests cut videos into clips of this many frames; the last may be shorter. Defaults to None: no cutting.

    Raises:
        ValueError: If `window` is not a positive int.
    """

    def __init__(self, *args: Any, window: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if window is not None:
            check_positive('window', window)
        self.window = window

    def describe(self, inputs: Tensor, sizes: Sequence[Size], training: bool) -> BatchInfo:
        """Describes clips; in training with `use_det_processor`, images, as for a detector."""
        if training and self.use_det_processor:
            return super().describe(inputs, sizes, training)
        return BatchInfo.of_clips(inputs, sizes, None if training else self.window)


@MODELS.register_module()
class SegDataPreProcessor(TellsSizes, MMSegDataPreProcessor):
    """mmseg's SegDataPreProcessor, which tells the image sizes in training, for `padding='exact'`.

    It also does in tests with a `test_cfg` that pads. Windows of sliding inference fill the batch.
    """
