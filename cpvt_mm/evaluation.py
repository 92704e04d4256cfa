"""Metrics of mmdet: COCO's, computed by faster-coco-eval, and one for videos that works with current numpy."""
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from mmengine.logging import MMLogger
from terminaltables import AsciiTable

from cpvt_mm.errors import UserError, did_you_mean
from cpvt_mm.registry import METRICS
from cpvt_mm.stack import require

require('mmdet')

from mmdet.evaluation import CocoMetric  # noqa: E402
from mmdet.evaluation import YouTubeVISMetric as MMDetYouTubeVISMetric  # noqa: E402

# Name -> IoU, area range (all, small, medium, large), and index of the number of detections.
PRECISIONS: dict[str, tuple[float | None, int, int]] = dict(
    mAP=(None, 0, 0), mAP_50=(.5, 0, -1), mAP_75=(.75, 0, -1), mAP_s=(None, 1, -1), mAP_m=(None, 2, -1),
    mAP_l=(None, 3, -1))
RECALLS = {'AR@100': (0, 0), 'AR@300': (0, 1), 'AR@1000': (0, 2), 'AR_s@1000': (1, 2), 'AR_m@1000': (2, 2),
           'AR_l@1000': (3, 2)}


@METRICS.register_module()
class FastCocoMetric(CocoMetric):
    """mmdet's CocoMetric, with the same arguments and results, computed in C++ by faster-coco-eval.

    It computes the metrics 'bbox' and 'segm'. All others, and `format_only`, are left to mmdet.

    Raises:
        UserError: If faster-coco-eval is not installed.
    """
    cat_ids: Any
    img_ids: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if not find_spec('faster_coco_eval'):
            raise UserError('cpvt_mm.FastCocoMetric needs faster-coco-eval: pip install faster-coco-eval, or set the '
                            'type of the metric to CocoMetric.')
        super().__init__(*args, **kwargs)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Returns the metrics over all images, by name."""
        if self.format_only or not {*self.metrics} <= {'bbox', 'segm'}:
            return super().compute_metrics(results)
        from faster_coco_eval import COCO

        with tempfile.TemporaryDirectory() as folder:
            prefix = self.outfile_prefix or str(Path(folder, 'results'))
            truth = COCO(self._coco_api.dataset if self._coco_api else self.gt_to_coco_json(
                [gt for gt, _ in results], prefix))
            if self.cat_ids is None:
                self.cat_ids = truth.get_cat_ids(cat_names=self.dataset_meta['classes'])
            if self.img_ids is None:
                self.img_ids = truth.get_img_ids()
            files = self.results2json([prediction for _, prediction in results], prefix)
            metrics: dict[str, float] = {}
            for kind in self.metrics:
                if kind not in files:
                    raise UserError(f'the metric is {kind}, but the model predicts no masks: set metric to bbox.')
                metrics |= self._evaluate(truth, files[kind], kind)
        return metrics

    def _evaluate(self, truth: Any, file: str, kind: str) -> dict[str, float]:
        from faster_coco_eval import COCO, COCOeval_faster

        predictions = COCO.load_json(file)
        if not predictions:
            MMLogger.get_current_instance().error('The testing results of the whole dataset is empty.')
            return {}
        if kind == 'segm':
            for prediction in predictions:
                del prediction['bbox']  # else areas are those of boxes
        evaluation = COCOeval_faster(truth, truth.loadRes(predictions), kind, print_function=lambda *_: None)
        evaluation.params.catIds, evaluation.params.imgIds = self.cat_ids, self.img_ids
        evaluation.params.maxDets, evaluation.params.iouThrs = list(self.proposal_nums), self.iou_thrs
        evaluation.evaluate()
        evaluation.accumulate()
        # (IoU, recall, class, area, number of detections), and the same without recall.
        precision, recall = evaluation.eval['precision'], evaluation.eval['recall']
        values = {name: _mean(_precision(precision, self.iou_thrs, *PRECISIONS[name])) for name in PRECISIONS}
        values |= {name: _mean(recall[..., area, number]) for name, (area, number) in RECALLS.items()}
        if 100 not in self.proposal_nums:
            values['mAP'] = -1.  # as in pycocotools, which has it for 100 detections only
        metrics = {}
        if self.classwise:
            metrics = self._classwise(precision)
        for name in self.metric_items or PRECISIONS:
            if name not in values:
                raise UserError(f'metric_items has {name}, which is no item of the metric{did_you_mean(name, values)}.')
            metrics[f'{kind}_{name}'] = round(values[name], 3)
        return metrics

    def _classwise(self, precision: np.ndarray) -> dict[str, float]:
        """Logs a table of all classes, and returns their average precisions."""
        table = [['category', *PRECISIONS]]
        for index, name in enumerate(self.dataset_meta['classes']):
            # Those at single thresholds are the first and the sixth, as in mmdet.
            found = [_mean(_precision(precision, self.iou_thrs, iou, area, -1)[..., index], nothing=float('nan'))
                     for iou, area, _ in PRECISIONS.values()]
            table.append([name, *(f'{round(value, 3)}' for value in found)])
        MMLogger.get_current_instance().info(f'\n{AsciiTable(table).table}')
        return {f'{name}_precision': float(first) for name, first, *_ in table[1:]}


def _precision(precision: np.ndarray, thresholds: Sequence[float], iou: float | None, area: int, number: int
               ) -> np.ndarray:
    """Returns precisions at one threshold of the IoU or all, `(IoU, recall, class)`."""
    taken = slice(None) if iou is None else np.flatnonzero(np.asarray(thresholds) == iou)
    return precision[taken, ..., area, number]


def _mean(values: np.ndarray, nothing: float = -1.) -> float:
    """Returns the mean of those that are known, not -1; `nothing` if there are none."""
    known = values[values > -1]
    return float(known.mean()) if known.size else nothing


@METRICS.register_module()
class YouTubeVISMetric(MMDetYouTubeVISMetric):
    """mmdet's YouTubeVISMetric, which uses `np.float`; numpy removed it in version 1.24."""

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Calls mmdet's method with `np.float` defined."""
        with patch.object(np, 'float', float, create=True):
            return super().compute_metrics(results)
