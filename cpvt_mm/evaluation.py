"""Metrics of mmdet: COCO's, computed by faster-coco-eval, and one for videos that works with current numpy."""
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import numpy as np

from cpvt_mm.errors import UserError, did_you_mean
from cpvt_mm.registry import METRICS
from cpvt_mm.stack import require

require('mmdet')

from mmdet.evaluation import CocoMetric  # noqa: E402
from mmdet.evaluation import YouTubeVISMetric as MMDetYouTubeVISMetric  # noqa: E402
from mmdet.evaluation.metrics import coco_metric  # noqa: E402
from pycocotools.cocoeval import COCOeval  # noqa: E402

# The values that mmdet's CocoMetric can return.
ITEMS = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l',
         'AR@100', 'AR@300', 'AR@1000', 'AR_s@1000', 'AR_m@1000', 'AR_l@1000')


class FastEvaluation(COCOeval):
    """The evaluation of pycocotools, computed in C++ by faster-coco-eval."""

    def evaluate(self) -> None:
        """Compares the boxes or masks of all images."""
        from faster_coco_eval import COCOeval_faster
        self.params.maxDets = sorted(self.params.maxDets)  # as pycocotools does
        self.fast = COCOeval_faster(self.cocoGt, self.cocoDt, self.params.iouType, print_function=lambda *_: None)
        for name in ('catIds', 'imgIds', 'maxDets', 'iouThrs', 'useCats'):  # those that mmdet sets
            setattr(self.fast.params, name, getattr(self.params, name))
        self.fast.evaluate()

    def accumulate(self, p: Any = None) -> None:
        """Sets `eval` to the precisions and recalls."""
        self.fast.accumulate()
        self.eval = self.fast.eval


@METRICS.register_module()
class FastCocoMetric(CocoMetric):
    """mmdet's CocoMetric, with the same arguments and results, computed in C++ by faster-coco-eval.

    Raises:
        UserError: If faster-coco-eval is not installed, or `metric_items` has an unknown name.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not find_spec('faster_coco_eval'):
            raise UserError('cpvt_mm.FastCocoMetric needs faster-coco-eval: pip install faster-coco-eval, or set the '
                            'type of the metric to CocoMetric.')
        super().__init__(*args, **kwargs)
        for name in self.metric_items or ():
            if name not in ITEMS:
                raise UserError(f'metric_items has {name}, which is no item of the metric{did_you_mean(name, ITEMS)}.')

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Returns the metrics over all images, by name."""
        if 'segm' in self.metrics and results and 'masks' not in results[0][1]:
            raise UserError('the metric is segm, but the model predicts no masks: set metric to bbox.')
        with patch.multiple(coco_metric, COCOeval=FastEvaluation, COCOevalMP=FastEvaluation):
            return super().compute_metrics(results)


@METRICS.register_module()
class YouTubeVISMetric(MMDetYouTubeVISMetric):
    """mmdet's YouTubeVISMetric, which uses `np.float`; numpy removed it in version 1.24."""

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Calls mmdet's method with `np.float` defined."""
        with patch.object(np, 'float', float, create=True):
            return super().compute_metrics(results)
