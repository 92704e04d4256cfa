"""Compares two models by their results on the same images.

The verdict is a permutation test: if two models are equally good, the results of each image could come from either
model. So the results are swapped on some of the images, in all ways or in many, and p is the share of ways in which the
models differ as much as without. This is exact for any metric and number of images (Good 2005, chapter 3).
"""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from openmmlab_tools.errors import UserError

from .intervals import CONFIDENCE, DRAWS, KINDS, Draws, Interval

EXACT = 11  # up to this number of images, all swaps are tried; for more images, random swaps
Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


class Difference(NamedTuple):
    """The first model's value minus the second model's value, the ends of its interval, and p of the permutation test.
    """
    value: float | None
    low: float | None
    high: float | None
    p: float


def check_classes(classes: Sequence[str], other: Mapping[str, Any]) -> None:
    """Raises a UserError if a report has other classes."""
    if [*classes] != other['classes']:
        raise UserError(f'the report to compare with has other classes ({other["classes"]} instead of {[*classes]}): '
                        'compare with a test on the same data.')


def compare(report: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Compares two reports by the images that both have with the same truth.

    Returns:
        The number of `images`, a `difference` for each kind and metric (see `Difference`), and a `verdict`, which
        follows from p of the first metric.
    """
    check_classes(report['classes'], other)
    pairs = [(image, other['images'][name]) for name, image in report['images'].items() if name in other['images']]
    pairs = [pair for pair in pairs if pair[0]['truth'] == pair[1]['truth']]
    kinds = [kind for kind in KINDS if kind in report['metrics'] and kind in other['metrics']]
    if not kinds or not any(any(image['objects']) for image, _ in pairs):
        raise UserError('the report to compare with has no image of this test with the same truth: compare with a '
                        'test on the same data.')
    by_kind = {kind: differences(pairs, kind) for kind in kinds}
    (name, first), = [*by_kind[kinds[0]].items()][:1]
    is_exact = report['is_exact'] and other['is_exact']
    return dict(images=len(pairs), difference=by_kind, is_exact=is_exact, verdict=_verdict(
        name, first, len(pairs), sum(_differ(pair, kinds[0]) for pair in pairs)) + (
            '' if is_exact else '; different batches in the two tests may have contributed to it'))


def _differ(pair: Pair, kind: str) -> bool:
    first, second = (sorted(image[kind]) if kind in ('bbox', 'segm') else image[kind] for image in pair)
    return bool(first != second)


def _verdict(name: str, difference: Difference, images: int, differing: int) -> str:
    assert difference.value is not None
    is_told = difference.p <= 1 - CONFIDENCE
    numbers = [f'{name} differs by {difference.value:+.3f}', f'p = {difference.p:.3f}']
    if difference.low is not None:
        numbers.append(f'{CONFIDENCE:.0%} interval {difference.low:+.3f} to {difference.high:+.3f}')
    smallest = 2.0 ** (1 - max(differing, 1))
    few = (f'; too few images: the models differ on {differing}, so p cannot be below {smallest:.2g}'
           if smallest > 1 - CONFIDENCE and differing else '')
    verdict = ('better' if difference.value > 0
               else 'worse') if is_told else 'not significantly different on these images'
    return f'{verdict}: {numbers[0]} ({", ".join(numbers[1:])}, {images} image{"s" * (images != 1)}{few})'


def differences(pairs: Sequence[Pair], kind: str, count: int = DRAWS) -> dict[str, Difference]:
    """Returns the difference of each metric of a kind; `count` is the number of draws, and of random swaps."""
    first, second = ([*side] for side in zip(*pairs, strict=True))
    draws, swaps = Draws(len(pairs), count=count), swapped(len(pairs), count)
    # Weights for the images of the first model come first, then weights for the images of the second model.
    none, stay = np.zeros_like(draws.weights), 1 - swaps
    first_metrics, other = (KINDS[kind]([*first, *second], kind, np.block(weights)) for weights in (
        [[draws.weights, none], [stay, swaps]], [[none, draws.weights], [swaps, stay]]))
    images = sum(any(image['objects']) for image in first)
    by_metric, is_different = {}, any(_differ(pair, kind) for pair in pairs)
    for name in first_metrics:
        if name != 'by_class':
            values = first_metrics[name] - other[name]
            p = p_value(values[0], values[len(draws.weights):])
            ends = draws.interval(values[:len(draws.weights)], images, least=-1)
            by_metric[name] = Difference(*_agreeing(ends, p), p) if is_different else Difference(0., 0., 0., 1.)
    return by_metric


def swapped(images: int, count: int = DRAWS) -> np.ndarray:
    """Returns on which images results are swapped, `(W, I)`: in no way first, then in all ways, or in
    `count` random ways."""
    if images <= EXACT:  # the first image keeps its results, because swapping all changes only the sign
        return np.arange(2 ** (images - 1))[:, None] >> np.arange(images - 1, -1, -1) & 1
    random = np.random.default_rng(0).integers(0, 2, (count, images))
    return np.concatenate([np.zeros((1, images), int), random])


def p_value(value: float, values: np.ndarray) -> float:
    """Returns in what share of all ways the difference is at least as large as without swaps, which is the first."""
    return float(np.mean(abs(values) >= abs(value) - 1e-9))


def _agreeing(interval: Interval, p: float) -> Interval:
    """Returns an interval that contains 0 if and only if the test, which is exact, does not tell the models apart."""
    value, low, high = interval
    if value is None or low is None or high is None:
        return interval
    if p > 1 - CONFIDENCE:
        return value, min(low, 0), max(high, 0)
    return value, (max(low, 0) if value > 0 else low), (min(high, 0) if value < 0 else high)
