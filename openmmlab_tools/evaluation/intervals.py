"""Intervals of metrics: how far the value on these images may be from the value on all images of their source.

Three kinds of draws answer three questions. Leaving out each image shows how much the value depends on one image
(jackknife). Drawing images with replacement shows how many standard errors the value may be off (studentised bootstrap,
Efron and Tibshirani 1993, chapter 12.5), on the scale of the logit, because the values end at 0 and 1. Halves of the
images show how much AP rises if there are fewer images. `python -m lab report_checks --simulate` measures how often the
intervals contain the true value.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .average_precision import Metrics, box_metrics, mean_of_known
from .progress import watched

DRAWS, HALVES, CONFIDENCE = 1000, 100, 0.95
FEWEST = 6  # images with objects: an interval of fewer contains the true value too seldom
UNITS = 200  # more images are drawn in so many groups
Interval = tuple[float | None, float | None, float | None]  # the value and the ends
BIAS = 2  # times the difference between a half and all images, in the simulations of `report_checks`


def pixel_metrics(images: Sequence[Mapping[str, Any]], kind: str, weights: np.ndarray) -> Metrics:
    """Returns the mean IoU, `(R,)`, and `by_class`, `(R, C)`. An image has, for each class, the number of pixels in the
    intersection and in the union of truth and prediction.
    """
    both, either = (weights @ np.array([image[kind][part] for image in images]) for part in (0, 1))
    with np.errstate(invalid='ignore'):
        by_class = both / np.where(either, either, np.nan)
    return dict(mIoU=mean_of_known(by_class, 1), by_class=by_class)


KINDS = dict(bbox=box_metrics, segm=box_metrics, regions=pixel_metrics, boundaries=pixel_metrics)


class Draws:
    """Random draws of images. A weight is the number of times that an image occurs in a draw.

    Attributes:
        weights: `(R, I)`: one draw with all images, draws that leave out one unit, halves, and draws with replacement.
    """

    def __init__(self, images: int, seed: int = 0, count: int = DRAWS) -> None:
        random = np.random.default_rng(seed)
        self.units = min(images, UNITS)
        self.drawn = random.multinomial(self.units, np.full(self.units, 1 / self.units), count)
        halves = random.permuted(np.tile(np.arange(self.units) % 2, (HALVES // 2, 1)), axis=1)
        parts = [np.ones((1, self.units), int), 1 - np.eye(self.units, dtype=int), halves, 1 - halves, self.drawn]
        self.weights = np.concatenate(parts)[:, random.permutation(images) % self.units]

    def interval(self, values: np.ndarray, images: int, least: float = 0, most: float = 1) -> Interval:
        """Returns the value of all images, and the ends of its interval: None for too few images, and without objects.

        Args:
            values: The values of the draws, `(R,)`.
            images: The number of images with objects.
            least, most: The smallest and the largest possible value.
        """
        if np.isnan(values[0]):
            return None, None, None
        if images < FEWEST:
            return float(values[0]), None, None
        low, high = self._ends((values - least) / (most - least), 1 - (1 - CONFIDENCE) ** (1 / images))
        return float(values[0]), least + (most - least) * low, least + (most - least) * high

    def _ends(self, values: np.ndarray, unseen: float) -> tuple[float, float]:
        """Returns the ends for values from 0 to 1. `unseen` is the share of another kind of images that may exist
        although no image here is of it: what is known if all images agree.
        """
        value, (leave_one, halves, drawn) = float(values[0]), np.split(
            values[1:], np.cumsum([self.units, HALVES // 2 * 2]))
        effects = np.nan_to_num((leave_one[~np.isnan(leave_one)].mean() - leave_one) * (self.units - 1))
        variance = (effects ** 2).mean() / (self.units - 1)
        if variance < 1e-18:
            return value * (1 - unseen), value + (1 - value) * unseen
        variances = ((self.drawn @ effects ** 2) / self.units - ((self.drawn @ effects) / self.units) ** 2) / (
            self.units - 1)
        errors = np.sqrt(np.maximum(variances, variance / 100)) * _slope(drawn)
        off = np.nanquantile(abs(_logit(drawn) - _logit(value)) / errors, CONFIDENCE)
        error = np.sqrt(variance)
        bias = np.clip(BIAS * (np.nanmean(halves) - value), -error, error)
        ends = [_logistic(_logit(centre) + sign * off * error * _slope(value))
                for centre in (value, value - bias) for sign in (-1, 1)]
        return min(value, *ends), max(value, *ends)


def _inner(values: Any) -> Any:
    """Returns values so far from 0 and 1 that their logits are finite."""
    return np.clip(values, 1e-3, 1 - 1e-3)


def _logit(values: Any) -> Any:
    return np.log(_inner(values) / (1 - _inner(values)))


def _slope(values: Any) -> Any:
    """Returns the derivative of the logit."""
    return 1 / (_inner(values) * (1 - _inner(values)))


def _logistic(value: float) -> float:
    return float(1 / (1 + np.exp(-value)))


def intervals(images: Sequence[Mapping[str, Any]], kinds: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns the metrics of images with their intervals, for each of some `KINDS`: three numbers, or a list of three
    for each class.
    """
    draws, by_kind = Draws(len(images)), dict[str, dict[str, Any]]()
    has_objects = np.array([image['objects'] for image in images]) > 0
    for kind in kinds:
        values = KINDS[kind](images, kind, draws.weights)
        by_class = values.pop('by_class')
        by_kind[kind] = {name: draws.interval(value, int(has_objects.any(1).sum())) for name, value in values.items()}
        by_kind[kind]['by_class'] = [draws.interval(value, int(count)) for value, count in watched(
            [*zip(by_class.T, has_objects.sum(0), strict=True)], 'Intervals by class')]
    return by_kind
