"""Precision, recall and F1 of the boxes of each class, by the least score of the boxes that count."""
import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

RECALLS = np.linspace(0, 1, 101)  # as in COCO's AP
ANY_AREA, ANY_NUMBER = [0, 1e10], 10 ** 9


@dataclass(frozen=True)
class Curve:
    """Counts of one class, if only boxes with some score or a higher one count.

    Attributes:
        objects: The number of objects, at least 1.
        scores: `(N,)`: the scores of boxes, each once, from high to low.
        found: `(N,)`: the number of boxes with that score or a higher one.
        hits: `(N,)`: how many of them match an object.
    """
    objects: int
    scores: np.ndarray
    found: np.ndarray
    hits: np.ndarray

    @property
    def f1(self) -> np.ndarray:
        return 2 * self.hits / (self.found + self.objects)

    def best(self) -> tuple[float, float] | None:
        """Returns the score that boxes must exceed for the best F1, and that F1; None if no object is found.

        The score is half way between those of two boxes.
        """
        if not self.hits.any():
            return None
        index = int(self.f1.argmax())
        last, below = np.float32(np.append(self.scores, 0)[index:index + 2])
        # Rounded as scores are, it must stay below that of the last box.
        return float(min((last + below) / 2, np.nextafter(last, below))), float(self.f1[index])

    def f1_above(self, thresholds: np.ndarray) -> np.ndarray:
        """Returns F1 of the boxes whose score is above thresholds, `(T,)`."""
        return np.append(0, self.f1)[np.searchsorted(-self.scores, -thresholds)]

    def precision_from(self, recalls: np.ndarray = RECALLS) -> np.ndarray:
        """Returns the best precision at recalls or higher ones, `(R,)`, 0 where there is none. Its mean is COCO's AP.
        """
        best = np.maximum.accumulate((self.hits / self.found)[::-1])[::-1]
        return np.append(best, 0)[np.searchsorted(self.hits / self.objects, recalls)]


def curves_of(true: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], num_classes: int,
              iou: float = 0.5) -> list[Curve | None]:
    """Returns the curve of each class, None for one without objects. pycocotools matches boxes to objects.

    Args:
        true: Objects with `image_id`, `category_id` (the number of the class, from 0), `bbox` (left, top, width and
            height) and `iscrowd`. Crowds, and boxes on them, do not count.
        found: Boxes with `score` instead of `iscrowd`.
        num_classes: The number of classes.
        iou: How much a box must overlap an object of its class. Defaults to 0.5.
    """
    images = sorted({one['image_id'] for one in (*true, *found)})
    with redirect_stdout(io.StringIO()):
        evaluation = COCOeval(*(_indexed(boxes, images, num_classes) for boxes in (true, found)), 'bbox')
        evaluation.params.iouThrs, evaluation.params.maxDets = [iou], [ANY_NUMBER]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [ANY_AREA], ['all']
        evaluation.evaluate()
    matched: list[list[Mapping[str, Any]]] = [[] for _ in range(num_classes)]
    for one in evaluation.evalImgs:
        if one:
            matched[one['category_id']].append(one)
    return [_curve(parts) for parts in matched]


def _indexed(boxes: Sequence[Mapping[str, Any]], images: Sequence[Any], num_classes: int) -> COCO:
    coco = COCO()
    coco.dataset = dict(
        images=[dict(id=image) for image in images], categories=[dict(id=index) for index in range(num_classes)],
        # With 0, an object would count as not found.
        annotations=[{'iscrowd': 0, **one, 'id': index, 'area': one['bbox'][2] * one['bbox'][3]}
                     for index, one in enumerate(boxes, start=1)])
    coco.createIndex()
    return coco


def _curve(parts: Sequence[Mapping[str, Any]]) -> Curve | None:
    """Joins what pycocotools found in each image for one class."""
    objects = sum(int((part['gtIgnore'] == 0).sum()) for part in parts)
    if not objects:
        return None
    counted = ~np.concatenate([part['dtIgnore'][0] for part in parts]).astype(bool)
    scores = np.concatenate([part['dtScores'] for part in parts])[counted]
    is_hit = np.concatenate([part['dtMatches'][0] for part in parts])[counted] > 0
    order = np.argsort(-scores, kind='stable')
    scores, hits = scores[order], is_hit[order].cumsum()
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # boxes of one score count together
    return Curve(objects, scores[last], last + 1, hits[last])
