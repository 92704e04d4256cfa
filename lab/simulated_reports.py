"""Simulates what reports of tests promise: images from sources whose metrics are known, because all of them are made.

The images of a source differ in how hard they are, so that the objects and boxes of one image depend on each other. Two
models on the same images share this, and are equally good.
"""
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from openmmlab_tools.errors import UserError
from openmmlab_tools.evaluation.average_precision import IOUS, box_metrics
from openmmlab_tools.evaluation.comparison import differences
from openmmlab_tools.evaluation.intervals import CONFIDENCE, Draws, pixel_metrics
from openmmlab_tools.evaluation.risk import score_that_misses

ALL = 10_000  # images of a source from which its true metrics come
DRAWS = 300  # of each interval; the reports have more, which changes little
MOST, NEVER = 0.1, (0.02, 0.1)  # shares of objects that may be missed, and for which models have no box
Rows = list[dict[str, Any]]


class Source(NamedTuple):
    """Images of a source. `quality` is the logit of the share of objects that are found, `wrong` the mean number of
    wrong boxes, and `spread` the standard deviation of the quality between images.
    """
    classes: int
    objects: float
    quality: float
    wrong: float
    spread: float


SOURCES = {'few objects': Source(1, 1.5, 0.5, 1, 0.8), 'many objects': Source(1, 12, 1, 5, 1.5),
           'three classes': Source(3, 6, 1, 4, 0.8), 'good model': Source(2, 8, 4, 0.3, 0.7)}


def boxes_of(source: Source, count: int, has_ties: bool, random: np.random.Generator, models: int = 1) -> list[Rows]:
    """Returns rows of images for several models in the form of `box_metrics`. With ties, scores are rounded to tenths.
    """
    rows: list[Rows] = [[] for _ in range(models)]
    for _ in range(count):
        ease, labels = random.normal(0, source.spread), random.integers(
            0, source.classes, 1 + random.poisson(source.objects - 1))
        for images in rows:
            predicted = labels[random.random(len(labels)) < _share(source.quality + ease, 0)]
            wrong = random.integers(0, source.classes, random.poisson(source.wrong))
            overlaps = np.ceil(len(IOUS) * _share(0.6 * (source.quality + ease), 1, len(predicted), random)).astype(int)
            scores = np.concatenate([_share(0.7 * source.quality + 0.5 * ease, 1, len(predicted), random),
                                     _share(0.3 * ease - 1, 1, len(wrong), random)])
            hits = np.append((1 << overlaps) - 1, np.zeros(len(wrong), int))
            if has_ties:
                scores = scores.round(1)
            columns = np.append(predicted, wrong), scores, hits, np.zeros(len(hits), int)
            images.append(dict(objects=np.bincount(labels, minlength=source.classes).tolist(), truth=0, bbox=[
                [*box] for box in zip(*(column.tolist() for column in columns), strict=True)]))
    return rows


def _share(logits: float, error: float, count: int = 1, random: np.random.Generator | None = None) -> np.ndarray:
    noise = random.normal(0, error, count) if random else np.zeros(count)
    return 1 / (1 + np.exp(-logits - noise))


def pixels_of(count: int, random: np.random.Generator) -> Rows:
    """Returns rows of images in the form of `pixel_metrics`. Two of the three classes occur in half of the images."""
    rows: Rows = []
    for _ in range(count):
        pixels = random.dirichlet([2, 1, 0.5]) * np.append(1, random.random(2) < 0.5) * 10_000
        share = _share(random.normal(0.5, 1), 0.5, 3, random)
        hits, false = (pixels * share).astype(int), random.poisson(500, 3)
        rows.append(dict(objects=pixels.astype(int).tolist(),
                         regions=[hits.tolist(), (pixels.astype(int) + false).tolist()]))
    return rows


def covers(rows: Rows, kind: str, truth: float, seed: int) -> bool:
    """Returns whether the interval of the first metric contains the true value."""
    draws = Draws(len(rows), seed, DRAWS)
    metrics = (box_metrics if kind == 'bbox' else pixel_metrics)(rows, kind, draws.weights)
    _, low, high = draws.interval(next(iter(metrics.values())), len(rows))
    return low is not None and high is not None and low <= truth <= high


def coverage(source: Source | None, count: int, has_ties: bool, trials: int) -> float:
    """Returns how often intervals of AP, or of the mean IoU without a source of boxes, contain the true value."""
    random = np.random.default_rng(count)

    def images(number: int) -> Rows:
        return boxes_of(source, number, has_ties, random)[0] if source else pixels_of(number, random)

    kind = 'bbox' if source else 'regions'
    metrics = (box_metrics if source else pixel_metrics)(images(ALL), kind, np.ones((1, ALL), int))
    truth = float(next(iter(metrics.values()))[0])
    return float(np.mean([covers(images(count), kind, truth, seed) for seed in range(trials)]))


def false_verdicts(source: Source, count: int, has_ties: bool, trials: int) -> float:
    """Returns how often one of two equally good models is called better."""
    random = np.random.default_rng(count)
    pairs = (zip(*boxes_of(source, count, has_ties, random, 2), strict=True) for _ in range(trials))
    return float(np.mean([differences([*pair], 'bbox', DRAWS)['AP'].p <= 1 - CONFIDENCE for pair in pairs]))


def risk(never: float, count: int, has_ties: bool, trials: int) -> tuple[float, float]:
    """Returns in what share of trials a score is chosen, and what share of objects it misses then, in the mean; NaN if
    no score is ever chosen. `never` is the share of objects for which the model has no box.
    """
    random = np.random.default_rng(count)
    images = _found(never, ALL, has_ties, random)
    parts = np.concatenate([np.stack([scores, np.full(len(scores), 1 / len(scores))]) for scores in images], axis=1)
    missed = []
    for _ in range(trials):
        try:
            score = score_that_misses(_found(never, count, has_ties, random), MOST)
        except UserError:
            continue
        missed.append(parts[1, parts[0] <= score].sum() / len(images))
    return len(missed) / trials, float(np.mean(missed)) if missed else np.nan


def _found(never: float, count: int, has_ties: bool, random: np.random.Generator) -> list[np.ndarray]:
    """Returns the scores at which the objects of each image are found, 0 for never."""
    images = []
    for _ in range(count):
        number, ease = 1 + random.poisson(4), random.normal(0, 1)
        scores = _share(1 + ease, 1, number, random).astype(np.float32)
        is_never = random.random(number) < random.beta(8 * never, 8 * (1 - never))
        images.append(np.where(is_never, np.float32(0), scores.round(1) if has_ties else scores))
    return images


def table(counts: Sequence[int], trials: int) -> Iterator[list[str]]:
    """Yields rows: how often intervals contain the true value, and one of two equal models is called better, in all
    `SOURCES`, and in brackets in the worst one; how often a score is written, and what share it misses then.
    """
    for count in counts:
        pixels = coverage(None, count, False, 2 * trials)
        for has_ties in (False, True):
            covered = [coverage(source, count, has_ties, trials) for source in SOURCES.values()]
            false = [false_verdicts(source, count, has_ties, trials // 2) for source in SOURCES.values()]
            chosen = [risk(never, count, has_ties, 5 * trials) for never in NEVER]
            yield [str(count), 'yes' if has_ties else 'no', f'{np.mean(covered):.3f} ({min(covered):.3f})',
                   '' if has_ties else f'{pixels:.3f}', f'{np.mean(false):.3f} ({max(false):.3f})',
                   *(f'{share:.3f}: {missed:.3f}' if share else '0' for share, missed in chosen)]


HEADER = ['images', 'equal scores', 'interval of AP', 'of mIoU', 'false verdicts',
          *(f'{never:.0%} never found: written, missed' for never in NEVER)]
