"""mmdet's metric of video instance segmentation, for the numpy of today."""
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cpvt_mm.registry import METRICS
from cpvt_mm.stack import require

require('mmdet')

from mmdet.evaluation import YouTubeVISMetric as MMDetYouTubeVISMetric  # noqa: E402


@METRICS.register_module()
class YouTubeVISMetric(MMDetYouTubeVISMetric):
    """mmdet's, which asks numpy for `np.float`; numpy has had none since version 1.24."""

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Does what mmdet's does."""
        with old_name_of_float():
            return super().compute_metrics(results)


@contextmanager
def old_name_of_float() -> Iterator[None]:
    """Has numpy call python's float `np.float`."""
    if 'float' in vars(np):
        yield
        return
    vars(np)['float'] = float
    try:
        yield
    finally:
        del vars(np)['float']
