"""mmdet's metric for video instance segmentation, for current versions of numpy."""
from typing import Any
from unittest.mock import patch

import numpy as np

from cpvt_mm.registry import METRICS
from cpvt_mm.stack import require

require('mmdet')

from mmdet.evaluation import YouTubeVISMetric as MMDetYouTubeVISMetric  # noqa: E402


@METRICS.register_module()
class YouTubeVISMetric(MMDetYouTubeVISMetric):
    """mmdet's YouTubeVISMetric, which uses `np.float`; numpy removed it in version 1.24."""

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Calls mmdet's method with `np.float` defined."""
        with patch.object(np, 'float', float, create=True):
            return super().compute_metrics(results)
