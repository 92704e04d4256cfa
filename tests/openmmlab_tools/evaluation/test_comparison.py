"""A verdict is as often wrong as it says: exactly, because all ways to swap results are equally likely."""
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmmlab_tools.evaluation.average_precision import box_metrics
from openmmlab_tools.evaluation.box_report import Boxes, matches
from openmmlab_tools.evaluation.comparison import EXACT, compare, differences, p_value, swapped
from tests.helpers import refusal
from tests.openmmlab_tools.evaluation.conftest import CLASSES
from tests.openmmlab_tools.evaluation.test_intervals import boxes_with_ids

HIT, MISS = [0, 0.5, 1023, 0], [0, 0.5, 0, 0]
RESULT = st.lists(st.tuples(st.just(0), st.sampled_from([0.3, 0.6]), st.sampled_from([0, 31, 1023]), st.just(0)),
                  max_size=3)


def report_of(images: list[list[Any]], kind: str = 'bbox') -> dict[str, Any]:
    """A report of images with four objects of one class."""
    rows = [{'objects': [4], 'truth': 1, kind: [[*box] for box in boxes]} for boxes in images]
    return dict(classes=['cat'], metrics={kind: {}}, is_exact=True,
                images={str(number): row for number, row in enumerate(rows)})


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(RESULT, RESULT), min_size=6, max_size=6))
def test_equal_models_are_told_apart_in_at_most_five_percent_of_cases(pairs: list[tuple[Any, Any]]) -> None:
    """If models are equally good, all ways to give them the results of a pair are equally likely. p of each way is
    computed here, and at most a share of x is below x, for each x: also with equal scores and equal results.
    """
    rows = [tuple(dict(objects=[4], bbox=[[*box] for box in one]) for one in pair) for pair in pairs]
    ways = swapped(len(rows))
    actual = []
    for way in ways:
        mixed = [pair[::-1] if is_swapped else pair for pair, is_swapped in zip(rows, way, strict=True)]
        own, other = (box_metrics([*side, *back], 'bbox', np.concatenate([1 - ways, ways], 1))['AP']
                      for side, back in ([*zip(*mixed, strict=True)], [*zip(*mixed, strict=True)][::-1]))
        actual.append(p_value((own - other)[0], own - other))
    assert all(np.mean(np.array(actual) <= level) <= level + 1e-9 for level in {0.05, *actual})
    first = differences([(dict(one, truth=1), dict(two, truth=1)) for one, two in rows], 'bbox', 50)['AP']
    assert first.p == pytest.approx(actual[0])
    assert first.low is not None and first.high is not None and first.low <= first.value <= first.high
    assert (first.low <= 0 <= first.high) or first.p <= 0.05


@pytest.mark.parametrize('images', [1, 2, 6, EXACT])
def test_all_ways_are_tried_for_few_images(images: int) -> None:
    ways = swapped(images)
    assert len({*map(tuple, ways.tolist())}) == len(ways) == 2 ** (images - 1) and not ways[0].any()
    assert p_value(1, np.where(ways.any(1), 0.5, 1)) == 2.0 ** (1 - images)


def test_many_images_are_swapped_at_random() -> None:
    ways = swapped(50)
    assert ways.shape == (1001, 50) and not ways[0].any() and 0.45 < ways[1:].mean() < 0.55
    assert p_value(9, ways.sum(1) * 0.01 + 9 * (ways.sum(1) == 0)) == 1 / 1001


def test_boxes_of_equal_scores_make_no_difference() -> None:
    """Only the order of the boxes of each image differs."""
    first, second = report_of([[HIT, MISS]] * 6), report_of([[MISS, HIT]] * 6)
    for own, other in ((first, second), (second, first)):
        assert compare(own, other)['verdict'].startswith('not significantly different on these images: AP differs by '
                                                         '+0.000 (p = 1.')


@pytest.mark.parametrize('images, differing, verdict', [
    (5, 5, 'not significantly different on these images: AP differs by +0.505 (p = 0.062, 5 images; too few images: '
           'the models differ on 5, so p cannot be below 0.062)'),
    (20, 3, 'not significantly different'),
    (6, 6, 'better: AP differs by +0.505 (p = 0.031, 95% interval +0.'), (40, 40, 'better')])
def test_models_that_differ_on_few_images_are_not_told_apart(images: int, differing: int, verdict: str) -> None:
    """51 of 101 points of recall are reached by two of four objects."""
    twice = [HIT, [0, 0.4, 1023, 0]]
    best = report_of([twice] * differing + [[]] * (images - differing))
    actual = compare(best, report_of([[]] * images))
    assert actual['verdict'].startswith(verdict) and ('too few' in actual['verdict']) == (differing < 6)
    again = compare(report_of([[]] * images), best)
    assert again['verdict'].replace('worse', 'better').startswith(verdict[:6].replace('worse', 'better'))


def test_pixels_are_compared_by_the_same_test() -> None:
    def report(share: int) -> dict[str, Any]:
        rows = [dict(objects=[100], truth=1, regions=[[share + number], [100]]) for number in range(8)]
        return dict(classes=['sky'], metrics=dict(regions={}), is_exact=True, images=dict(enumerate(rows)))

    actual = compare(report(60), report(50))
    assert actual['verdict'].startswith('better: mIoU differs by +0.100 (p = 0.008, 95% interval +0.0')
    assert compare(report(50), report(50))['difference']['regions']['mIoU'] == (0, 0, 0, 1)


def report_of_boxes(data: Boxes) -> dict[str, Any]:
    rows = matches(data, dict(bbox=data.evaluate(data.boxes)))
    return dict(classes=[*CLASSES], metrics=dict(bbox={}), is_exact=True,
                images={str(number): row for number, row in rows.items()})


def test_a_run_is_not_told_apart_from_itself_and_a_perfect_one_is_better(annotations: Path) -> None:
    data = boxes_with_ids(annotations)
    own, perfect = report_of_boxes(data), Boxes(CLASSES, data.images, data.objects, [
        dict(labelled, score=0.9) for labelled in data.objects if not labelled['iscrowd']])
    assert compare(own, own)['verdict'].startswith('not significantly different on these images: AP differs by +0.000 '
                                                   '(p = 1.000')
    assert compare(report_of_boxes(perfect), own)['verdict'].startswith('better: AP')
    verdict = compare(own, dict(report_of_boxes(perfect), is_exact=False))['verdict']
    assert verdict.startswith('worse') and 'different batches in the two tests may have' in verdict
    fewer = copy.deepcopy(own)
    del fewer['images']['3']
    moved = [dict(one, bbox=[0, *one['bbox'][1:]]) if one['image_id'] == 4 else one for one in data.objects]
    fewer['images']['4'] = report_of_boxes(Boxes(CLASSES, data.images, moved, data.boxes))['images']['4']
    assert compare(own, fewer)['images'] == len(own['images']) - 2
    for other in (dict(own, classes=['cat']), dict(own, images={}), dict(own, metrics=dict(regions={}))):
        assert 'compare with a test on the same data' in refusal(compare, own, other)
