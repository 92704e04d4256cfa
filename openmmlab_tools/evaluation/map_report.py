"""The report of a segmentor: pixels of each image by class, near boundaries, and suspected labels."""
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from zlib import crc32

import cv2
import numpy as np

from .intervals import intervals

BAND = 0.02  # of the diagonal: the width of a boundary (Boundary IoU, arXiv 2103.16562)
LEAST = 100  # pixels of a region whose label is suspected
KINDS = ('regions', 'boundaries')
Entry = dict[str, Any]


def count(truth: np.ndarray, predicted: np.ndarray, pairs: np.ndarray, ignored: int) -> Entry:
    """Counts the pixels of an image's label maps, `(H, W)`, by class. `pairs` comes from `match_pixels`.

    Pixels whose true label is `ignored`, or is no class, are left out. `unknown` is the number of pixels without a
    class.

    Returns:
        `objects`, the pixels of each class; `regions` and `boundaries`, the pixels in the intersection and in the union
        of truth and prediction; `confusion`, pairs of a true and a predicted class (the number of classes for none of
        them) with their number; the share that is `wrong`; `suspects`; and `truth`, a checksum of the true labels.
    """
    classes, unknown, pairs = len(pairs) - 1, int(pairs[-1].sum()), pairs[:-1]
    known = (truth >= 0) & (truth < classes) & (truth != ignored)
    truth = np.where(known, truth, classes + 1)
    predicted = np.where(known, np.minimum(predicted, classes), classes + 1)
    hits, total = pairs.diagonal(), pairs.sum(1)
    band = max(1, round(BAND * float(np.hypot(*truth.shape))))
    near = np.zeros((2, classes), int)
    for number in np.flatnonzero(total + pairs[:, :classes].sum(0)):
        first, second = (_boundary(labels == number, band) for labels in (truth, predicted))
        near[:, number] = (first & second).sum(), (first | second).sum()
    return dict(
        objects=total.tolist(), regions=[hits.tolist(), (total + pairs[:, :classes].sum(0) - hits).tolist()],
        boundaries=near.tolist(), confusion=[[*map(int, cell), int(pairs[tuple(cell)])] for cell in np.argwhere(pairs)],
        wrong=float((total - hits).sum() / max(total.sum(), 1)), unknown=unknown,
        suspects=_suspects(truth, predicted, classes), truth=crc32(truth.astype(np.int32).tobytes()))


def _boundary(cells: np.ndarray, band: int) -> np.ndarray:
    """Returns the cells that are at most `band` pixels from the end of a region or of the image."""
    inner = cv2.erode(np.pad(cells, 1).astype(np.uint8), np.ones((3, 3), np.uint8), iterations=band)
    return cells & (inner[1:-1, 1:-1] == 0)


def regions(labels: np.ndarray, classes: int) -> Iterator[tuple[int, list[int], np.ndarray]]:
    """Yields connected regions with at least `LEAST` pixels of one class: class, box (left, top, width, height) and
    cells, `(H, W)`.
    """
    for number in np.unique(labels[labels < classes]).tolist():
        _, parts, stats, _ = cv2.connectedComponentsWithStats((labels == number).astype(np.uint8), connectivity=4)
        for index, (*box, area) in enumerate(stats[1:].tolist(), start=1):
            if area >= LEAST:
                yield number, box, parts == index


def _suspects(truth: np.ndarray, predicted: np.ndarray, classes: int) -> list[Entry]:
    """Returns regions of a labelled class that are mostly predicted as another class, and the share of these pixels."""
    suspected = []
    for number, box, cells in regions(truth, classes):
        votes = np.bincount(predicted[cells], minlength=classes)[:classes]
        other, area = int(votes.argmax()), int(cells.sum())
        if other != number and votes[other] > area / 2:
            suspected.append(dict(suspect='class', category_id=other + 1, label=number + 1, bbox=box, area=area,
                                  score=float(votes[other] / area)))
    return suspected


def summarize(images: Mapping[str, Entry], classes: Sequence[str]) -> Entry:
    """Returns what a report tells of a segmentor, from what `count` returns for each image, by its name."""
    rows, confusion = [*images.values()], np.zeros((len(classes), len(classes) + 1), int)
    for row, column, pixels in (cell for counts in rows for cell in counts['confusion']):
        confusion[row, column] += pixels
    # If a model often confuses two classes, a disagreement between them is a weak sign of a wrong label.
    rates = confusion[:, :-1] / np.maximum(confusion.sum(1, keepdims=True), 1)
    suspected = []
    for number, suspect in ((number, suspect) for number, row in enumerate(rows, start=1)
                            for suspect in row['suspects']):
        column = rates[:, suspect['category_id'] - 1]
        right, other = column[suspect['category_id'] - 1], column[suspect['label'] - 1]
        suspected.append(dict(suspect, image_id=number,
                              score=float(suspect['score'] * right / max(right + other, 1e-9))))
    return dict(classes=[*classes], metrics=intervals(rows, KINDS), confusion=confusion.tolist(), images=images,
                suspects=sorted(suspected, key=lambda suspect: -suspect['score']))
