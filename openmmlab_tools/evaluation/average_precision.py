"""Average precision as COCO defines it, with one rule for boxes of equal scores: they count together.

A score that boxes must reach accepts all boxes of this score or none, so precision and recall exist only after the last
of them. The order of such boxes in a file has no effect then. Without equal scores, this is the curve of pycocotools.
"""
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .progress import watched

IOUS = tuple(step / 100 for step in range(50, 100, 5))  # COCO's thresholds; `hits` of a box has a bit for each
RECALLS = np.linspace(0, 1, 101)
CELLS = 4_000_000  # boxes times draws that are in memory at once
Metrics = dict[str, np.ndarray]


class Curves(NamedTuple):
    """Precision by recall of each draw, `(P, R)`: the points after the scores at which there are hits.

    Attributes:
        precision: The largest precision at this recall or a larger recall.
        steps: At how many of `RECALLS` it is the precision. At the others, the precision is 0.
    """
    precision: np.ndarray
    steps: np.ndarray

    @property
    def areas(self) -> np.ndarray:
        """AP of each draw, `(R,)`."""
        return (self.precision * self.steps).sum(0) / len(RECALLS)

    @property
    def line(self) -> np.ndarray:
        """The precision at `RECALLS` in the first draw, `(101,)`."""
        reached = np.repeat(self.precision[:, 0], self.steps[:, 0])
        return np.pad(reached, (0, len(RECALLS) - len(reached)))


def curves(scores: np.ndarray, flags: Sequence[tuple[np.ndarray, np.ndarray]], weights: np.ndarray, totals: np.ndarray
           ) -> Iterator[Curves]:
    """Yields the precision and recall curves of one class for each IoU threshold.

    Args:
        scores: The scores of the boxes, descending, `(N,)`.
        flags: For each threshold, whether a box is a hit, and whether it does not count, `(N,)`.
        weights: How often a draw contains each box, whole numbers, `(N, R)`.
        totals: The number of objects in each draw, `(R,)`, not 0.
    """
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # of boxes with the same score
    boxes = weights.cumsum(0, dtype=np.int32)
    for is_hit, is_ignored in flags:
        hits, ignored = np.flatnonzero(is_hit), np.flatnonzero(is_ignored)
        ends = last[np.unique(np.searchsorted(last, hits))]
        true_boxes = _sums(weights, hits, ends)
        precision = true_boxes / (boxes[ends] - _sums(weights, ignored, ends) + np.spacing(1))
        precision = np.maximum.accumulate(precision[::-1])[::-1]
        yield Curves(precision, np.diff(np.searchsorted(RECALLS, true_boxes / totals, side='right'), axis=0, prepend=0))


def _sums(weights: np.ndarray, chosen: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns the sums of the weights of chosen boxes up to each of the ends, `(P, R)`."""
    if not len(chosen):
        return np.zeros((len(ends), weights.shape[1]), np.int32)
    sums = np.pad(weights[chosen].cumsum(0, dtype=np.int32), ((1, 0), (0, 0)))
    return sums[np.searchsorted(chosen, ends, side='right')]


def box_metrics(images: Sequence[Mapping[str, Any]], kind: str, weights: np.ndarray) -> Metrics:
    """Returns COCO's AP, AP50 and AP75, `(R,)`, and `by_class`, `(R, C)`, for each draw of images.

    Args:
        images: For each image the number of `objects` in each class, and its boxes: label, score, and for each
            threshold in `IOUS` whether the box is a hit, and whether it lies on an ignored object.
        weights: How often each draw contains each image, `(R, I)`.
    """
    objects = np.array([image['objects'] for image in images])
    boxes = [(index, *box) for index, image in enumerate(images) for box in image[kind]]
    index, label, score, hits, ignored = np.array(boxes, float).reshape(-1, 5).T
    bits = 1 << np.arange(len(IOUS))
    order = np.lexsort((-score, label))
    starts = np.searchsorted(label[order], np.arange(objects.shape[1] + 1))
    by_image, totals = weights.T.astype(np.int32), weights @ objects
    values = np.full((3, *totals.shape), np.nan)  # the mean, at IoU 0.5 and at 0.75
    known = np.flatnonzero(objects.any(0)).tolist()
    for number in watched(known, f'{len(weights)} draws of {len(images)} images, by class'):
        chosen = order[starts[number]:starts[number + 1]]
        flags = [((hits[chosen].astype(int) & bit) > 0, (ignored[chosen].astype(int) & bit) > 0) for bit in bits]
        flags = [(is_hit, is_ignored & ~is_hit) for is_hit, is_ignored in flags]
        rows = np.flatnonzero(totals[:, number])
        for part in np.array_split(rows, max(1, len(rows) * len(chosen) // CELLS)):
            copies = by_image[index[chosen].astype(int)][:, part]
            areas = [curve.areas for curve in curves(score[chosen], flags, copies, totals[part, number])]
            values[:, part, number] = np.mean(areas, axis=0), areas[0], areas[5]
    return dict(zip(('AP', 'AP50', 'AP75'), mean_of_known(values, 2), strict=True), by_class=values[0])


def mean_of_known(values: np.ndarray, axis: int) -> np.ndarray:
    """Returns the mean of what is not NaN; NaN of nothing."""
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(axis) / np.where(known.any(axis), known.sum(axis), np.nan)
