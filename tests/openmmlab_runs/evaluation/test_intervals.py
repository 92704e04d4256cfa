"""Intervals are those of hotcoco's bootstrap, differences are paired by image, and chosen scores keep their promise."""
import copy
import json
from pathlib import Path

import hotcoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmmlab_runs.evaluation.box_report import Boxes, matches
from openmmlab_runs.evaluation.intervals import (
    FEWEST,
    box_metrics,
    compare,
    draws,
    interval,
    pixel_metrics,
    score_that_misses,
)
from tests.conftest import refusal
from tests.openmmlab_runs.evaluation.conftest import CLASSES, predict


def boxes_of(annotations: Path, seed: int = 0) -> Boxes:
    coco, samples = json.loads(annotations.read_text()), predict(annotations, seed)
    objects = [dict(one, category_id=one['category_id'] - 4) for one in coco['annotations']]
    found = [dict(image_id=one['img_id'], category_id=int(label) + 1, score=float(score),
                  bbox=[*box[:2].tolist(), *(box[2:] - box[:2]).tolist()], area=float((box[2:] - box[:2]).prod()))
             for one in samples for box, label, score in zip(*map(
                 one['pred_instances'].get, ('bboxes', 'labels', 'scores')), strict=True)]
    return Boxes(CLASSES, coco['images'], objects, [dict(one, id=index) for index, one in enumerate(found, start=1)])


@pytest.mark.parametrize('seed', range(3))
def test_ap_and_its_interval_are_those_of_hotcoco(seed: int, annotations: Path) -> None:
    """Also with crowds, images without objects, and a class without one. An AP is its difference to that of no hits."""
    data = boxes_of(annotations, seed)
    evaluation, nothing = (data.evaluate(boxes) for boxes in (
        data.boxes, [dict(one, bbox=[0, 0, 1, 1]) for one in data.boxes]))
    rows = [*matches(data, dict(bbox=evaluation)).values()]
    found = box_metrics(rows, 'bbox', draws(len(rows)))
    theirs = hotcoco.compare(nothing, evaluation, n_bootstrap=1000)
    # A quantile of 1000 draws has a standard error of about a tenth of the width of the interval at most.
    for name in ('AP', 'AP50', 'AP75'):
        value, low, high = interval(found[name])
        assert value == pytest.approx(theirs['metrics_b'][name], abs=1e-12)
        assert [low, high] == pytest.approx([theirs['ci'][name][key] for key in ('lower', 'upper')],
                                            abs=0.3 * (high - low))
    assert interval(found['by_class'])[CLASSES.index('emu')] == [None, None, None]


def test_a_weight_is_the_number_of_copies_of_an_image(annotations: Path) -> None:
    data = boxes_of(annotations)
    rows = [*matches(data, dict(bbox=data.evaluate(data.boxes))).values()]
    weights = np.arange(len(rows)) % 3
    copies = [row for row, weight in zip(rows, weights, strict=True) for _ in range(weight)]
    one, other = (box_metrics(part, 'bbox', np.array([row]))['AP'] for part, row in (
        (rows, weights), (copies, np.ones(len(copies), int))))
    assert one == pytest.approx(other, abs=1e-12)


def test_iou_of_pixels_by_hand() -> None:
    """The second class is in one image only; the third in none."""
    images = [dict(regions=[[2, 1, 0], [4, 2, 0]]), dict(regions=[[3, 0, 0], [4, 0, 0]])]
    found = pixel_metrics(images, 'regions', np.array([[1, 1], [0, 2]]))
    assert found['mIoU'].tolist() == pytest.approx([(5 / 8 + 1 / 2) / 2, 3 / 4])
    np.testing.assert_allclose(found['by_class'], [[5 / 8, 1 / 2, np.nan], [3 / 4, np.nan, np.nan]])


def report_of(data: Boxes) -> dict:
    rows = matches(data, dict(bbox=data.evaluate(data.boxes)))
    return dict(classes=[*CLASSES], metrics=dict(bbox={}), is_exact=True,
                images={str(number): row for number, row in rows.items()})


def test_a_run_is_not_told_apart_from_itself_and_a_perfect_one_is_better(annotations: Path) -> None:
    data = boxes_of(annotations)
    own, perfect = report_of(data), Boxes(CLASSES, data.images, data.objects, [
        dict(one, score=0.9) for one in data.objects if not one['iscrowd']])
    assert compare(own, own)['verdict'].startswith('not told apart by these images: AP differs by +0.000 (95% inter')
    assert compare(report_of(perfect), own)['verdict'].startswith('better: AP')
    verdict = compare(own, dict(report_of(perfect), is_exact=False))['verdict']
    assert verdict.startswith('worse') and 'the batches of the two tests may have a part in it' in verdict
    fewer = copy.deepcopy(own)
    del fewer['images']['3']
    moved = [dict(one, bbox=[0, *one['bbox'][1:]]) if one['image_id'] == 4 else one for one in data.objects]
    fewer['images']['4'] = report_of(Boxes(CLASSES, data.images, moved, data.boxes))['images']['4']
    assert compare(own, fewer)['images'] == len(own['images']) - 2
    for count, verdict in ((FEWEST, 'better'), (FEWEST - 1, 'not told apart'), (1, 'not told apart')):
        best = report_of(perfect)
        best['images'] = {name: best['images'][name] for name in [*best['images']][:count]}
        assert compare(best, own)['verdict'].startswith(verdict)
    for other in (dict(own, classes=['cat']), dict(own, images={}), dict(own, metrics=dict(regions={}))):
        assert 'compare with a test on the same data' in refusal(compare, own, other)


@pytest.mark.parametrize('most', [0.1, 0.3])
def test_a_new_image_misses_no_more_than_the_share_in_the_mean(most: float) -> None:
    """The mean is between `most` - 2 / (n + 1) and `most` (arXiv 2208.02814, theorems 1 and 2)."""
    random, missed, count = np.random.default_rng(0), [], 40
    for _ in range(500):
        images = [random.uniform(0.2, 1, random.integers(1, 6)) ** random.uniform(0.5, 2) for _ in range(count + 1)]
        missed.append((images[-1].astype(np.float32) <= score_that_misses(images[:-1], most)).mean())
    error = np.std(missed) / len(missed) ** 0.5
    assert most - 2 / (count + 1) - 3 * error < np.mean(missed) < most + 3 * error


@given(st.lists(st.lists(st.sampled_from([0.125, 0.25, 0.5, 0.75]), max_size=4), min_size=19, max_size=25),
       st.floats(0.05, 0.95))
def test_the_score_is_the_largest_that_keeps_the_bound(images: list[list[float]], most: float) -> None:
    def bound(score: float) -> float:
        return sum(np.mean([one <= score for one in image]) for image in images if image) + 1

    score, allowed = score_that_misses([np.array(image) for image in images], most), most * (len(images) + 1)
    assert bound(score) <= allowed + 1e-8
    assert score == 1 or bound(np.nextafter(np.float32(score), np.float32(1))) > allowed


@pytest.mark.parametrize('images, told', [
    ([[0.9]] * 8, 'in 8 images, boxes of any score miss 0.0%; use at least 9 images'),
    ([[0.9, 0.]] * 100, 'in 100 images, boxes of any score miss 50.0%; use a better model')])
def test_a_set_that_is_too_small_is_told(images: list[list[float]], told: str) -> None:
    assert told in refusal(score_that_misses, map(np.array, images), 0.1)
    assert 0 < score_that_misses([np.array([0.9])] * 9, 0.1) < 0.9
    assert 'miss 0.0%; use a larger --at-most-missed.' in refusal(score_that_misses, [np.array([0.9])] * 9, 0.)
