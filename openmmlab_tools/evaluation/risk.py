"""Chooses the score that boxes must exceed, so that new images miss few objects: with a risk that is bounded."""
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from openmmlab_tools.errors import UserError

from .intervals import CONFIDENCE

BETS = 10  # sizes of bets against the claim that more is missed


def score_that_misses(images: Iterable[np.ndarray], most: float) -> float:
    """Returns the largest score threshold with which new images from the same source miss few objects.

    On average, at most the share `most` of the objects in an image is missed. `images` contains, for each image, the
    scores at which its objects are found, and 0 for objects that are never found. Images without objects do not count.

    This is a risk-controlling set (arXiv 2101.02703) with a bound by betting (arXiv 2010.09686): the probability that a
    score is returned although it misses more is at most 1 - `CONFIDENCE`, for any model and any number of images. A
    bound on the expected risk alone (arXiv 2208.02814) does not hold given that a score is returned: if a model never
    finds a share of about `most`, only lucky draws of images have a score.

    Raises:
        UserError: If no score is sure to keep this promise.
    """
    scores = [np.asarray(image, np.float32) for image in images if len(image)]
    all_scores = np.concatenate([*scores, np.zeros(0, np.float32)])
    image = np.repeat(np.arange(len(scores)), np.array([len(score) for score in scores], int))
    shares = 1 / np.bincount(image, minlength=len(scores))[image]

    def losses(least: float) -> np.ndarray:
        """Returns the share of the objects of each image that is missed by boxes above a score."""
        return np.bincount(image, shares * (all_scores <= least), len(scores))

    def is_unknown(least: float) -> bool:
        return _capital(losses(least), most, len(scores)) < 1 / (1 - CONFIDENCE)

    if is_unknown(0):
        raise UserError(_refusal(losses(0), most))
    steps = np.unique(all_scores[all_scores > 0])
    index = bisect_left(range(len(steps)), True, key=lambda index: is_unknown(float(steps[index])))
    return float(np.nextafter(steps[index], np.float32(-1))) if index < len(steps) else 1.


def _capital(losses: np.ndarray, most: float, images: int) -> float:
    """Returns what 1 has become after bets that losses have a mean below `most`, made on `images` of such losses.

    Each image multiplies a bet by 1 + size * (most - loss). If the mean is larger, no bet is expected to grow, and the
    capital is 20 or more with a probability of at most 1 / 20 (Markov's inequality). The order of the images has no
    effect.
    """
    if most >= 1 or not len(losses):
        return np.inf if most >= 1 else 1.
    with np.errstate(divide='ignore'):  # the largest bet loses all on an image whose objects are all missed
        gains = np.arange(1, BETS + 1)[:, None] / BETS / (1 - most) * (most - losses)
        growth = np.log1p(np.maximum(gains, -1)).mean(1)
    return float(np.exp(np.minimum(images * growth, 700)).mean())


def _refusal(losses: np.ndarray, most: float) -> str:
    rate, count = float(losses.mean()) if len(losses) else 0., len(losses)
    losses = losses if count else np.zeros(1)
    needed = bisect_left(range(100_000), True, key=lambda images: _capital(losses, most, images) >= 1 / (
        1 - CONFIDENCE))
    remedy = (f'about {needed} images with objects, or ' if needed < 100_000 else 'a better model, or ' if most else '')
    return (f'no score threshold is sure to miss at most {most:.1%} of the objects in new images. In {count} images '
            f'with objects, even without a threshold {rate:.1%} are missed: use {remedy}a larger --at-most-missed.')
