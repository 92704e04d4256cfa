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
    """mmdet's TrackDataPreprocessor with a window for tests.

    It attaches clip lengths to batches, for `PEG(ndim=3)`, and image sizes, for `padding='exact'`.

    Args:
        args: Arguments of mmdet's class.
        window: In tests, videos are cut into clips of this many frames; the last clip may be shorter. Training uses
            whole clips. Defaults to None: no cutting.
        kwargs: Arguments of mmdet's class.

    Raises:
        ValueError: If `window` is not a positive int.
    """

    def __init__(self, *args: Any, window: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if window is not None:
            check_positive('window', window)
        self.window = window

    def tell_sizes(self, inputs: Tensor, sizes: Sequence[Size], training: bool) -> Tensor:
        """Returns a `ClipBatch`; in training with `use_det_processor`, images with their sizes, as for a detector."""
        if training and self.use_det_processor:
            return super().tell_sizes(inputs, sizes, training)
        return ClipBatch.wrap(inputs, sizes, None if training else self.window)
