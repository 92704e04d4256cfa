"""Matches predictions and truth: boxes and objects as COCO's metric does, and pixels by their classes."""
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from hotcoco import COCO, COCOeval
from hotcoco.metrics import pixel_confusion

# Boxes with a lower score do not count in tables of classes, and boxes that overlap less do not match.
SCORE, IOU = 0.3, 0.5


class Matches(NamedTuple):
    """Predicted boxes that count, `(N,)`, and objects that count, `(M,)`; those on crowds, and crowds, do not.

    Attributes:
        predicted: The labels of boxes.
        true: The labels of their objects, the number of classes for boxes without one.
        scores: The scores of boxes, float64.
        objects: The number of objects of each class, `(num_classes,)`.
    """
    predicted: np.ndarray
    true: np.ndarray
    scores: np.ndarray
    objects: np.ndarray

    @property
    def is_hit(self) -> np.ndarray:
        return self.predicted == self.true

    def table(self, least: float = 0) -> np.ndarray:
        """Counts the pairs of classes of boxes with a score from `least`, and of objects, `(n + 1, n + 1)`; without a
        partner, the class is n.
        """
        none, is_sure = len(self.objects), self.scores >= least
        counts = np.zeros((none + 1, none + 1), int)
        np.add.at(counts, (self.true[is_sure], self.predicted[is_sure]), 1)
        counts[:none, none] = self.objects - counts[:none].sum(1)
        return counts


def evaluate(true: COCO, found: COCO, kind: str = 'bbox', ious: Sequence[float] = (IOU,),
             areas: Sequence[Sequence[float]] = (), within_classes: bool = True) -> COCOeval:
    """Matches boxes to objects in the order of their scores, each to the free object that it overlaps most.

    Args:
        true: The annotations, whose categories are labels + 1.
        found: The predictions. None of them is cut.
        kind: 'bbox' or 'segm'.
        ious: The least overlaps of a match. Defaults to `IOU`.
        areas: The least and the most of areas, in pixels, which are matched after all objects. Defaults to none.
        within_classes: Whether only a box and an object of one class match.
    """
    evaluation = COCOeval(true, found, kind)
    params = evaluation.params
    params.iou_thrs, params.max_dets, params.use_cats = [*ious], [len(found.anns) + 1], within_classes
    params.area_rng = [[0, 1e10], *map(list, areas)]
    params.area_rng_lbl = ['all', *map(str, range(len(areas)))]
    evaluation.evaluate()
    return evaluation


def match(true: COCO, found: COCO, within_classes: bool) -> Matches:
    """Returns the matches at `IOU`; see `evaluate`."""
    none, rows, objects = len(true.cats), [], np.zeros(len(true.cats) + 1, int)
    labels, boxes = ({id: one['category_id'] - 1 for id, one in side.anns.items()} for side in (true, found))
    for one in filter(None, evaluate(true, found, within_classes=within_classes).eval_imgs):
        np.add.at(objects, [labels[id] for id, is_out in zip(one['gtIds'], one['gtIgnore'], strict=True)
                            if not is_out], 1)
        rows += [(boxes[box], labels.get(id, none), score) for box, id, score, is_out in zip(
            one['dtIds'], one['dtMatches'][0], one['dtScores'], one['dtIgnore'][0], strict=True) if not is_out]
    predicted, partners, scores = np.array(rows, float).reshape(-1, 3).T
    return Matches(predicted.astype(int), partners.astype(int), scores, objects[:none])


def match_pixels(true: np.ndarray, predicted: np.ndarray, classes: int, ignored: int) -> np.ndarray:
    """Counts the pairs of classes of pixels, `(n + 1, n + 1)`, as mmseg's IoUMetric does, without those whose true
    label is `ignored`. Labels of other classes than the n have the index n.
    """
    first, second = (np.where((one >= 0) & (one < classes), one, classes) for one in (true, predicted))
    first[true == ignored] = classes + 1
    counts = pixel_confusion(first, second, classes + 2, ignore_index=classes + 1)
    return counts[:classes + 1, :classes + 1].astype(int)
