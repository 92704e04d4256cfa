"""mmdet's data preprocessor for clips."""
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cpvt_mm.registry import MODELS
from cpvt_mm.stack import require

from ..arguments import check_positive
from ..clips import ClipBatch
from ..valid_sizes import Size
from .sizes import TellsValidSizes

require('mmdet')

from mmdet.models.data_preprocessors import TrackDataPreprocessor as MMDetTrackDataPreprocessor  # noqa: E402


@MODELS.register_module()
class TrackDataPreprocessor(TellsValidSizes, MMDetTrackDataPreprocessor):
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

    def tell_sizes(self, inputs: Tensor, sizes: Sequence[Size], training: bool) -> Tensor:
        """Returns a `ClipBatch`; in a training with `use_det_processor` images, as for a detector."""
        if training and self.use_det_processor:
            return super().tell_sizes(inputs, sizes, training)
        return ClipBatch.wrap(inputs, sizes, None if training else self.window)
