"""Intervals of metrics over images, the difference of two models, and a score that misses few objects.

Images are drawn with replacement (Efron 1979). A draw is a weight for each image: how often it occurs.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np

from openmmlab_runs.errors import UserError

DRAWS, CONFIDENCE = 1000, 0.95
FEWEST = 6  # images: the differences of fewer have one sign in more than 5 % of cases by chance
IOUS = tuple(step / 100 for step in range(50, 100, 5))  # COCO's thresholds; `hits` of a box has a bit for each
RECALLS = np.linspace(0, 1, 101)
Metrics = dict[str, np.ndarray]


def draws(images: int, count: int = DRAWS, seed: int = 0) -> np.ndarray:
    """Returns weights, `(1 + count, images)`: those of all images once, then those of the draws."""
    drawn = np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), count)
    return np.concatenate([np.ones((1, images), int), drawn])


def box_metrics(images: Sequence[Mapping[str, Any]], kind: str, weights: np.ndarray) -> Metrics:
    """Returns AP, AP50 and AP75 as COCO has them, `(R,)`, and `by_class`, `(R, C)`, of images with weights, `(R, I)`.

    An image has the number of `objects` of each class, and boxes: the label, the score, and in which of `IOUS` the box
    is a hit, or lies on an ignored object.
    """
    objects = np.array([one['objects'] for one in images])
    boxes = [(index, *box) for index, one in enumerate(images) for box in one[kind]]
    index, label, score, hits, ignored = np.array(boxes, float).reshape(-1, 5).T
    bits, totals = 1 << np.arange(len(IOUS)), weights @ objects
    found = np.full((len(weights), len(IOUS), objects.shape[1]), np.nan)
    for number in range(objects.shape[1]):
        chosen = np.flatnonzero(label == number)
        chosen = chosen[np.argsort(-score[chosen], kind='stable')]
        is_hit = (hits[chosen].astype(int) & bits[:, None]) > 0
        counts = ~is_hit & ((ignored[chosen].astype(int) & bits[:, None]) == 0)
        for row in np.flatnonzero(totals[:, number]):
            weight = weights[row, index[chosen].astype(int)]
            found[row, :, number] = _average_precision(
                (is_hit * weight).cumsum(1), (counts * weight).cumsum(1), totals[row, number])
    return dict(AP=_mean(found, (1, 2)), AP50=_mean(found[:, 0], 1), AP75=_mean(found[:, 5], 1),
                by_class=_mean(found, 1))


def _average_precision(hits: np.ndarray, others: np.ndarray, total: int) -> np.ndarray:
    """Returns AP, `(T,)`, from the numbers of hits and other boxes down to each score, `(T, N)`."""
    count, length = hits.shape
    precision = np.maximum.accumulate((hits / np.maximum(hits + others, 1))[:, ::-1], 1)[:, ::-1]
    needed = np.searchsorted(np.arange(total + 1) / total, RECALLS)  # hits for each recall
    rows = np.arange(count)[:, None]
    places = np.searchsorted((hits + rows * (total + 1)).ravel(), needed + rows * (total + 1)) - rows * length
    return np.pad(precision, ((0, 0), (0, 1)))[rows, places].mean(1)


def pixel_metrics(images: Sequence[Mapping[str, Any]], kind: str, weights: np.ndarray) -> Metrics:
    """Returns the mean IoU, `(R,)`, and `by_class`, `(R, C)`. An image has, for each class, the number of pixels in the
    intersection and in the union of truth and prediction.
    """
    both, either = (weights @ np.array([one[kind][part] for one in images]) for part in (0, 1))
    with np.errstate(invalid='ignore'):
        by_class = both / np.where(either, either, np.nan)
    return dict(mIoU=_mean(by_class, 1), by_class=by_class)


def _mean(values: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Returns the mean of what is not NaN; NaN of nothing."""
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(axis) / np.where(known.any(axis), known.sum(axis), np.nan)


KINDS = dict(bbox=box_metrics, segm=box_metrics, regions=pixel_metrics, boundaries=pixel_metrics)


def interval(values: np.ndarray) -> list[Any]:
    """Returns the value of all images, which is the first, and the ends of the interval, those of 95 % of the draws.

    Three numbers of `(R,)`, and a list of three for each class of `(R, C)`; None where there are no objects.
    """
    with catch_warnings():
        simplefilter('ignore', RuntimeWarning)  # classes without objects have only NaN
        ends = np.nanquantile(values[1:], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    found = np.stack([values[0], *ends], -1)
    return np.where(np.isnan(found), np.array(None), found).tolist()


def intervals(images: Sequence[Mapping[str, Any]], kinds: Iterable[str]) -> dict[str, dict[str, list[Any]]]:
    """Returns the metrics of images with their intervals, for each of some `KINDS`."""
    weights = draws(len(images))
    return {kind: {name: interval(values) for name, values in KINDS[kind](images, kind, weights).items()}
            for kind in kinds}


def check_classes(classes: Sequence[str], other: Mapping[str, Any]) -> None:
    """Raises a UserError if a report has other classes."""
    if [*classes] != other['classes']:
        raise UserError(f'the report to compare with has other classes ({other["classes"]} instead of {[*classes]}): '
                        'compare with a test on the same data.')


def compare(own: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Compares two reports by the images that both have with the same truth: each draw is of the same images. Returns
    the number of `images`, a `difference` with its interval for each kind and metric, and a `verdict`.
    """
    check_classes(own['classes'], other)
    pairs = [(one, other['images'][name]) for name, one in own['images'].items() if name in other['images']]
    pairs = [pair for pair in pairs if pair[0]['truth'] == pair[1]['truth']]
    kinds = [kind for kind in KINDS if kind in own['metrics'] and kind in other['metrics']]
    if not kinds or not any(any(one['objects']) for one, _ in pairs):
        raise UserError('the report to compare with has no image of this test with the same truth: compare with a '
                        'test on the same data.')
    weights, found = draws(len(pairs)), {}
    for kind in kinds:
        first, second = (KINDS[kind](side, kind, weights) for side in zip(*pairs, strict=True))
        found[kind] = {name: interval(first[name] - second[name]) for name in first if name != 'by_class'}
    (name, (value, low, high)), = [*next(iter(found.values())).items()][:1]
    exact = own['is_exact'] and other['is_exact']
    is_told = len(pairs) >= FEWEST and not low <= 0 <= high
    verdict = ('better' if low > 0 else 'worse') if is_told else 'not told apart by these images'
    return dict(images=len(pairs), difference=found, is_exact=exact, verdict=(
        f'{verdict}: {name} differs by {value:+.3f} ({CONFIDENCE:.0%} interval {low:+.3f} to {high:+.3f}, '
        f'{len(pairs)} images)' + ('' if exact else '; the batches of the two tests may have a part in it')))


def score_that_misses(shares: Iterable[np.ndarray], most: float) -> float:
    """Chooses the score that boxes must exceed by conformal risk control (arXiv 2208.02814), from the scores at which
    the objects of each image are found, 0 for never.

    A new image of the same source then misses at most a share `most` of its objects in expectation: the mean is over
    images, and over the draw of those that are given. A UserError tells if no score does it.
    """
    images = [np.asarray(one, np.float32) for one in shares]
    never = sum(float((one <= 0).mean()) for one in images if len(one))
    if never + 1 > most * (len(images) + 1):
        rate = never / max(len(images), 1)
        needed = (f'at least {np.ceil((1 - most) / (most - rate)):.0f} images, or ' if rate < most else
                  'a better model, or ' if most else '')
        raise UserError(f'no score is known to miss at most {most:.1%} of the objects of new images: in {len(images)} '
                        f'images, boxes of any score miss {rate:.1%}; use {needed}a larger --at-most-missed.')
    scores = np.concatenate([one for one in images if len(one)] or [np.zeros(0, np.float32)])
    parts = np.concatenate([np.full(len(one), 1 / len(one)) for one in images if len(one)] or [np.zeros(0)])
    order = np.argsort(scores)
    missed = np.flatnonzero(parts[order].cumsum() + 1 > most * (len(images) + 1) + 1e-9)
    return float(np.nextafter(scores[order][missed[0]], np.float32(-1))) if len(missed) else 1.
