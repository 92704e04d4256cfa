"""Simulated images show that intervals and scores of reports keep their promises."""
import numpy as np
import pytest

from lab.simulated_reports import SOURCES, boxes_of, coverage, risk
from openmmlab_tools.evaluation.average_precision import box_metrics
from openmmlab_tools.evaluation.intervals import FEWEST, Draws


@pytest.mark.parametrize('ties', [False, True])
@pytest.mark.parametrize('never', [0.02, 0.06])
def test_new_images_miss_no_more_than_promised_given_that_there_is_a_score(never: float, ties: bool) -> None:
    written, missed = risk(never, 100, ties, 200)
    assert written > 0.05 and missed <= 0.1


@pytest.mark.parametrize('images', [10, 50, 100])
def test_a_model_that_never_finds_as_many_has_a_score_in_at_most_five_percent_of_cases(images: int) -> None:
    """A share of 0.05 of 200 cases is exceeded by three standard errors at 0.096."""
    for never in (0.1, 0.12):
        assert risk(never, images, False, 200)[0] <= 0.096


def test_an_interval_is_narrower_with_more_images() -> None:
    random = np.random.default_rng(0)
    rows, = boxes_of(SOURCES['many objects'], 800, True, random)
    widths = []
    for count in (20, 80, 800):
        draws = Draws(count)
        _, low, high = draws.interval(box_metrics(rows[:count], 'bbox', draws.weights)['AP'], count)
        assert low is not None and high is not None
        widths.append(high - low)
    assert widths[0] > 1.5 * widths[1] > 2 * widths[2]


@pytest.mark.slow
@pytest.mark.parametrize('source, ties', [('few objects', True), ('good model', False), (None, False)])
def test_intervals_of_six_images_contain_the_true_value(source: str | None, ties: bool) -> None:
    """Percentiles of draws contain it in 70 to 85 % of cases. The standard error of a share of 0.95 is 0.02 here."""
    assert coverage(SOURCES[source] if source else None, FEWEST, ties, 120) >= 0.9
