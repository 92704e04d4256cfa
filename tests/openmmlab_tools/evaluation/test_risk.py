"""A chosen score keeps its promise: given that one is chosen, and also for models that never find many objects."""
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmmlab_tools.evaluation.risk import BETS, score_that_misses
from tests.helpers import refusal


def capital(losses: list[float], most: float) -> float:
    """The mean of the products, one by one."""
    return float(np.mean([np.prod([1 + size / BETS / (1 - most) * (most - loss) for loss in losses])
                          for size in range(1, BETS + 1)]))


@given(st.lists(st.lists(st.sampled_from([0.125, 0.25, 0.5, 0.75]), max_size=4), min_size=19, max_size=25),
       st.floats(0.05, 0.95))
def test_the_score_is_the_largest_whose_risk_is_refuted(images: list[list[float]], most: float) -> None:
    """Images without objects have no effect."""
    def money(score: float) -> float:
        return capital([np.mean([one <= score for one in image]) for image in images if image], most)

    if money(0) < 20:
        assert 'no score threshold is sure' in refusal(score_that_misses, map(np.array, images), most)
        return
    score = score_that_misses([np.array(image) for image in images], most)
    assert money(score) > 20 - 1e-6
    assert score == 1 or money(np.nextafter(np.float32(score), np.float32(1))) < 20 + 1e-6


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0., 0.125, 0.25, 0.5]), min_size=1, max_size=4), min_size=60, max_size=70),
       st.randoms(use_true_random=False))
def test_the_order_of_images_and_of_objects_has_no_effect(images: list[list[float]], random: Any) -> None:
    def result(these: list[list[float]]) -> float | str:
        try:
            return score_that_misses(map(np.array, these), 0.5)
        except ValueError as error:
            return str(error)

    assert result(images) == result([random.sample(one, len(one)) for one in random.sample(images, len(images))])


@pytest.mark.parametrize('images, told', [
    ([[0.9]] * 8, 'In 8 images with objects, even without a threshold 0.0% are missed: use about 41 images with '
     'objects, or'),
    ([[0.9, 0.]] * 100, 'In 100 images with objects, even without a threshold 50.0% are missed: use a better '
     'model, or'),
    ([[]] * 100, 'In 0 images with objects')])
def test_a_set_that_is_too_small_is_told(images: list[list[float]], told: str) -> None:
    assert told in refusal(score_that_misses, map(np.array, images), 0.1)


def test_as_many_images_as_told_are_enough() -> None:
    assert 0 < score_that_misses([np.array([0.9])] * 41, 0.1) < 0.9
    assert 'no score' in refusal(score_that_misses, [np.array([0.9])] * 40, 0.1)
    assert '0.0% are missed: use a larger --at-most-missed.' in refusal(score_that_misses, [np.array([0.9])] * 99, 0.)
    assert score_that_misses([np.array([0.])] * 3, 1.) == 1
