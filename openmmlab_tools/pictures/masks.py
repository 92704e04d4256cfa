"""Masks of instances in COCO's layout: polygons and run-length encodings, read without painting them."""
from collections.abc import Sequence
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

MAX_RUN = 1 << 32  # pixels
DIGITS = 5  # bits of a character of a compressed encoding


def runs_of(counts: Any) -> np.ndarray | None:
    """Returns the lengths of the runs of an encoding, a list or a text, int64, background first; None if it is invalid.
    """
    if isinstance(counts, str):
        return _unpack(counts)
    are_counts = isinstance(counts, list) and all(
        isinstance(count, int | float) and 0 <= count < MAX_RUN and count % 1 == 0 for count in counts)
    return np.array(counts, np.int64) if are_counts else None


def cells_of(mask: dict[str, Any]) -> tuple[int, int, np.ndarray]:
    """Returns the top and the left of an RLE mask, and its pixels within its box, `(h, w)`, uint8; needs no memory for
    the image.
    """
    left, top, width, height = coco_mask.toBbox(mask).astype(int).tolist()
    runs = runs_of(mask['counts'])  # of zeros and ones in turns, down one column after another
    assert runs is not None
    ends = runs.cumsum()
    lengths = ends[1::2] - ends[:-1:2]
    places = np.arange(lengths.sum()) + np.repeat(ends[:-1:2] - (lengths.cumsum() - lengths), lengths)
    cells = np.zeros((height, width), np.uint8)
    cells[places % mask['size'][0] - top, places // mask['size'][0] - left] = 1
    return top, left, cells


def _unpack(text: str) -> np.ndarray | None:
    """Unpacks runs, five bits a character, lowest first; from the fourth on, differences to the run before the last."""
    digits = np.frombuffer(text.encode('utf-32-le', 'surrogatepass'), np.uint32).astype(np.int64) - ord('0')
    is_last = digits & 32 == 0
    if not len(digits) or digits.min() < 0 or digits.max() > 63 or not is_last[-1]:
        return None
    ends = np.flatnonzero(is_last)
    starts = np.append(0, ends[:-1] + 1)
    lengths = ends + 1 - starts
    if lengths.max() * DIGITS > 40:  # runs have at most 32 bits
        return None
    place = np.arange(len(digits)) - np.repeat(starts, lengths)
    runs = np.add.reduceat((digits & 31) << DIGITS * place, starts)
    runs -= np.where(digits[ends] & 16, 1 << DIGITS * lengths, 0)  # the highest bit is the sign
    for first in (1, 2):
        runs[first::2] = runs[first::2].cumsum()
    return runs if runs.min() >= 0 and runs.max() < MAX_RUN else None


def are_polygons(mask: Any, limit: float) -> bool:
    """Returns whether a mask is a list of lists of numbers, none of which is beyond a limit."""
    return isinstance(mask, list) and all(isinstance(polygon, list) and all(
        type(number) in (int, float) and -limit <= number <= limit for number in polygon) for polygon in mask)


def area_of(mask: Any) -> float | None:
    """Returns the number of pixels of a mask, for polygons the sum of their areas; None if it is no mask."""
    if isinstance(mask, dict):
        runs = runs_of(mask.get('counts'))
        return None if runs is None else int(runs[1::2].sum())
    polygons = [polygon for polygon in mask if len(polygon) >= 6 and len(polygon) % 2 == 0] if are_polygons(
        mask, 1e9) else []
    return sum(map(polygon_area, polygons)) if polygons else None


def polygon_area(polygon: Sequence[float]) -> float:
    """Returns the area of a polygon x, y, x, y, ... by the shoelace formula."""
    xs, ys = np.array(polygon[::2], float), np.array(polygon[1::2], float)
    return float(abs(xs @ np.roll(ys, 1) - ys @ np.roll(xs, 1)) / 2)
