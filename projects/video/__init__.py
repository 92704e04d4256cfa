"""Clips for mmdet's trackers: importing it registers the preprocessor and the metric that configs of video name."""
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from cpvt_mm.registry import MODELS
from cpvt_mm.tokens.batch_info import BatchInfo, TellsSizes
from cpvt_mm.tokens.grid import Size
from cpvt_mm.tokens.validation import check_positive
from openmmlab_tools.libraries import require
from openmmlab_tools.registry import METRICS

require('mmdet')

from mmdet.evaluation import YouTubeVISMetric as MMDetYouTubeVISMetric  # noqa: E402
from mmdet.models.data_preprocessors import TrackDataPreprocessor as MMDetTrackDataPreprocessor  # noqa: E402


@MODELS.register_module()
class TrackDataPreprocessor(TellsSizes, MMDetTrackDataPreprocessor):
    """mmdet's TrackDataPreprocessor, which tells the clip length (for `PEG(ndim=3)`) and image sizes
    (`padding='exact'`).

    Args:
        window: Tests cut videos into clips of this many frames; the last may be shorter. Defaults to None: no cutting.
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


@METRICS.register_module()
class YouTubeVISMetric(MMDetYouTubeVISMetric):
    """mmdet's YouTubeVISMetric with current numpy, and for any ids of instances: mmdet treats an instance with the id 0
    as not found, and confuses instances of two videos that have the same id.
    """

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        with patch.object(np, 'float', float, create=True):
            return super().compute_metrics(results)

    def format_gts(self, gts: tuple[list[Any], ...]) -> dict[str, Any]:
        formatted = super().format_gts(gts)
        for index, instance in enumerate(formatted['annotations'], start=1):
            instance['id'] = index
        return formatted
