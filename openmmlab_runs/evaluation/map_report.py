"""What a report tells of a segmentor: pixels of each image by class, near boundaries, and suspected labels."""
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from hotcoco.metrics import pixel_confusion

from .intervals import draws, interval, pixel_metrics

BAND = 0.02  # of the diagonal: the width of a boundary (Boundary IoU, arXiv 2103.16562)
LEAST = 100  # pixels of a region whose label is suspected
KINDS = ('regions', 'boundaries')
Entry = dict[str, Any]


def count(truth: np.ndarray, found: np.ndarray, classes: int, ignored: int) -> Entry:
    """Counts pixels of an image's label maps, `(H, W)`, by class; those of other true labels than the classes are left
    out, and `unknown` tells how many of them are not `ignored`.

    Returns:
        `objects`, the pixels of each class; `regions` and `boundaries`, those in the intersection and in the union of
        truth and prediction; `confusion`, pairs of a true and a predicted class (the number of classes for none of
        them) with their number; the share that is `wrong`; and `suspects`.
    """
    known = truth < classes
    unknown = int((~known & (truth != ignored)).sum())
    truth = np.where(known, truth, classes + 1)
    found = np.where(known, np.minimum(found, classes), classes + 1)
    # hotcoco refuses labels that are not classes; a prediction of none of them is a class here.
    pairs = pixel_confusion(truth, found, classes + 2, ignore_index=classes + 1)[:classes, :classes + 1].astype(int)
    hits, total = pairs.diagonal(), pairs.sum(1)
    band = max(1, round(BAND * float(np.hypot(*truth.shape))))
    near = np.zeros((2, classes), int)
    for number in np.flatnonzero(total + pairs[:, :classes].sum(0)):
        first, second = (_boundary(labels == number, band) for labels in (truth, found))
        near[:, number] = (first & second).sum(), (first | second).sum()
    return dict(
        objects=total.tolist(), regions=[hits.tolist(), (total + pairs[:, :classes].sum(0) - hits).tolist()],
        boundaries=near.tolist(), confusion=[[*map(int, cell), int(pairs[tuple(cell)])] for cell in np.argwhere(pairs)],
        wrong=float(1 - hits.sum() / max(total.sum(), 1)), unknown=unknown, suspects=_suspects(truth, found, classes))


def _boundary(cells: np.ndarray, band: int) -> np.ndarray:
    """Returns the cells that are at most `band` pixels from the end of a region or of the image."""
    inner = cv2.erode(np.pad(cells, 1).astype(np.uint8), np.ones((3, 3), np.uint8), iterations=band)
    return cells & (inner[1:-1, 1:-1] == 0)


def _suspects(truth: np.ndarray, found: np.ndarray, classes: int) -> list[Entry]:
    """Returns connected regions of a true class that are mostly predicted as one other class, by the share of it."""
    suspected = []
    for number in np.unique(truth[truth < classes]).tolist():
        _, regions, stats, _ = cv2.connectedComponentsWithStats((truth == number).astype(np.uint8), connectivity=4)
        for index, (*box, area) in enumerate(stats[1:].tolist(), start=1):
            votes = np.bincount(found[regions == index], minlength=classes)[:classes] if area >= LEAST else np.zeros(1)
            other = int(votes.argmax())
            if other != number and votes[other] > area / 2:
                suspected.append(dict(suspect='class', category_id=other + 1, label=number + 1, bbox=box, area=area,
                                      score=float(votes[other] / area)))
    return suspected


def summarize(images: Mapping[str, Entry], classes: Sequence[str]) -> Entry:
    """Returns what a report tells of a segmentor, from what `count` returns for each image, by its name."""
    rows, confusion = [*images.values()], np.zeros((len(classes), len(classes) + 1), int)
    for row, column, pixels in (cell for one in rows for cell in one['confusion']):
        confusion[row, column] += pixels
    weights = draws(len(rows))
    metrics = {kind: {name: interval(values) for name, values in pixel_metrics(rows, kind, weights).items()}
               for kind in KINDS}
    suspected = [dict(one, image_id=number) for number, row in enumerate(rows, start=1) for one in row['suspects']]
    return dict(classes=[*classes], metrics=metrics, confusion=confusion.tolist(),
                suspects=sorted(suspected, key=lambda one: -one['score'] * one['area'] ** 0.5), images=images)
