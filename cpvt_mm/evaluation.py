"""mmdet's metric for video instance segmentation, for current versions of numpy."""
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
    """mmdet's YouTubeVISMetric, which uses `np.float`; numpy removed it in version 1.24."""

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Calls mmdet's method with `np.float` defined."""
        with old_name_of_float():
            return super().compute_metrics(results)


@contextmanager
def old_name_of_float() -> Iterator[None]:
    """Defines `np.float` as Python's float in the `with` block."""
    if 'float' in vars(np):
        yield
        return
    vars(np)['float'] = float
    try:
        yield
    finally:
        del vars(np)['float']
