"""Matches of predicted boxes and annotated objects, as COCO's metric matches them."""
from typing import NamedTuple

import numpy as np
from hotcoco import COCO, COCOeval

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


def match(true: COCO, found: COCO, within_classes: bool) -> Matches:
    """Matches boxes in the order of their scores to the free object that they overlap most, at least by `IOU`.

    Args:
        true: The annotations, whose categories are labels + 1.
        found: The predictions.
        within_classes: Whether only a box and an object of one class match.
    """
    evaluation = COCOeval(true, found, 'bbox')
    params = evaluation.params
    params.iou_thrs, params.max_dets, params.use_cats = [IOU], [10 ** 9], within_classes
    params.area_rng, params.area_rng_lbl = [[0, 1e10]], ['all']
    evaluation.evaluate()
    none, rows, objects = len(true.cats), [], np.zeros(len(true.cats) + 1, int)
    labels = {id: one['category_id'] - 1 for id, one in true.anns.items()}
    boxes = {id: one['category_id'] - 1 for id, one in found.anns.items()}
    for one in filter(None, evaluation.eval_imgs):
        np.add.at(objects, [labels[id] for id, is_out in zip(one['gtIds'], one['gtIgnore'], strict=True)
                            if not is_out], 1)
        rows += [(boxes[box], labels.get(id, none), score) for box, id, score, is_out in zip(
            one['dtIds'], one['dtMatches'][0], one['dtScores'], one['dtIgnore'][0], strict=True) if not is_out]
    predicted, partners, scores = np.array(rows, float).reshape(-1, 3).T
    return Matches(predicted.astype(int), partners.astype(int), scores, objects[:none])
