"""An estimate lies in its interval, and intervals contain the true value about as often as they say."""
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openmmlab_tools.evaluation.box_report import Boxes, matches
from openmmlab_tools.evaluation.intervals import FEWEST, UNITS, Draws, intervals, pixel_metrics
from tests.openmmlab_tools.evaluation.conftest import CLASSES, predict


def boxes_with_ids(annotations: Path, seed: int = 0) -> Boxes:
    coco, samples = json.loads(annotations.read_text()), predict(annotations, seed)
    objects = [dict(annotation, category_id=annotation['category_id'] - 4) for annotation in coco['annotations']]
    actual = [dict(image_id=sample['img_id'], category_id=int(label) + 1, score=float(score),
                   bbox=[*box[:2].tolist(), *(box[2:] - box[:2]).tolist()], area=float((box[2:] - box[:2]).prod()))
              for sample in samples for box, label, score in zip(*map(
                 sample['pred_instances'].get, ('bboxes', 'labels', 'scores')), strict=True)]
    return Boxes(CLASSES, coco['images'], objects, [dict(one, id=index) for index, one in enumerate(actual, start=1)])


@pytest.mark.parametrize('seed', range(3))
def test_ap_is_that_of_hotcoco(seed: int, annotations: Path) -> None:
    """Also with crowds, images without objects, and a class without one."""
    data = boxes_with_ids(annotations, seed)
    evaluation = data.evaluate(data.boxes)
    rows = [*matches(data, dict(bbox=evaluation)).values()]
    actual = intervals(rows, ['bbox'])['bbox']
    assert evaluation.eval
    precision = np.array(evaluation.eval['precision'])[..., 0, 0]
    for name, part in (('AP', precision), ('AP50', precision[0]), ('AP75', precision[5])):
        assert actual[name][0] == pytest.approx(part[part > -1].mean(), abs=1e-12)
    assert actual['by_class'][CLASSES.index('emu')] == (None, None, None)


def test_iou_of_pixels_by_hand() -> None:
    """The second class is in one image only; the third in none."""
    images = [dict(regions=[[2, 1, 0], [4, 2, 0]]), dict(regions=[[3, 0, 0], [4, 0, 0]])]
    actual = pixel_metrics(images, 'regions', np.array([[1, 1], [0, 2]]))
    assert actual['mIoU'].tolist() == pytest.approx([(5 / 8 + 1 / 2) / 2, 3 / 4])
    np.testing.assert_allclose(actual['by_class'], [[5 / 8, 1 / 2, np.nan], [3 / 4, np.nan, np.nan]])


SHARES = st.sampled_from([0, 0.1, 0.5, 0.9, 1])
BOX = st.tuples(st.just(0), st.sampled_from([0.3, 0.6]), st.sampled_from([0, 1, 1023]), st.just(0))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(BOX, max_size=3), min_size=FEWEST, max_size=9), st.integers(0, 1))
def test_an_estimate_lies_in_its_interval(images: list[list[Any]], more: int) -> None:
    """Also with equal scores, where all images agree, and where nothing or all is found."""
    rows = [dict(objects=[more + sum(box[2] > 0 for box in boxes)], bbox=[[*box] for box in boxes]) for boxes in images]
    for name, ends in intervals(rows, ['bbox'])['bbox'].items():
        value, low, high = ends[0] if name == 'by_class' else ends
        if low is not None:
            assert 0 <= low <= value <= high <= 1
            assert low < high  # never sure


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(SHARES, SHARES), min_size=FEWEST, max_size=9))
def test_a_mean_iou_lies_in_its_interval(images: list[tuple[float, float]]) -> None:
    rows = [dict(objects=[100, 100], regions=[[int(100 * share) for share in image], [100, 100]]) for image in images]
    actual = intervals(rows, ['regions'])['regions']
    for value, low, high in (actual['mIoU'], *actual['by_class']):
        assert 0 <= low <= value <= high <= 1 and low < high


@pytest.mark.parametrize('worst', [0.9999, 0.5, 0.0001])
def test_values_near_the_ends_lie_in_their_intervals(worst: float) -> None:
    """The mean of five images with a value of 1, or 0, and another one."""
    draws = Draws(6)
    best = float(worst > 0.4)
    values = draws.weights @ ([best] * 5 + [worst]) / draws.weights.sum(1)
    value, low, high = draws.interval(values, 6)
    assert value is not None and low is not None and high is not None and 0 <= low <= value <= high <= 1


def test_too_few_images_have_no_interval() -> None:
    """For a class, images with its objects count."""
    row = dict(objects=[1, 0], bbox=[[0, 0.5, 1023, 0]])
    few = intervals([row] * (FEWEST - 1) + [dict(objects=[0, 0], bbox=[])] * 9, ['bbox'])['bbox']
    assert few['AP'] == (1, None, None) and few['by_class'][1] == (None, None, None)
    rare = intervals([row] * FEWEST + [dict(objects=[1, 1], bbox=[])], ['bbox'])['bbox']
    assert None not in rare['by_class'][0] and rare['by_class'][1] == (0, None, None)


def test_images_that_all_agree_allow_for_others() -> None:
    """If one in q images is of another kind, none of 20 is with a probability of (1 - q) ** 20."""
    _, low, high = intervals([dict(objects=[1], bbox=[[0, 0.5, 1023, 0]])] * 20, ['bbox'])['bbox']['AP']
    assert low == pytest.approx(0.05 ** (1 / 20)) and high == 1


@pytest.mark.parametrize('images', [7, UNITS, UNITS + 150])
def test_draws_have_as_many_images_as_there_are(images: int) -> None:
    """Where there are more images than units, each unit has nearly as many."""
    draws = Draws(images)
    assert (draws.weights[0] == 1).all() and draws.weights.min() == 0
    most = -(-images // draws.units)
    left_out = images - draws.weights[1:1 + draws.units].sum(1)
    assert left_out.sum() == images and left_out.min() >= 1 and left_out.max() <= most
    halves = draws.weights[1 + draws.units:-len(draws.drawn)]
    assert (halves.mean(0) == 0.5).all()
    assert draws.weights.shape == (1 + draws.units + len(halves) + len(draws.drawn), images)
