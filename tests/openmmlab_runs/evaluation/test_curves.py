"""Precision, recall and F1 by score are those of COCO's metric, and the best scores belong to a checkpoint."""
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from mmdet.evaluation import CocoMetric
from torch import nn

from openmmlab_runs.evaluation import curves as module
from openmmlab_runs.evaluation.curves import Curve, curves_of, draw_curves, find_thresholds, write_thresholds
from tests.conftest import refusal
from tests.openmmlab_runs.evaluation.conftest import compute, predict

BOX, FAR = [0., 0., 10., 10.], [50., 50., 10., 10.]


def true(bbox: list[float], iscrowd: int = 0) -> dict[str, Any]:
    return dict(image_id='a', category_id=0, bbox=bbox, iscrowd=iscrowd)


def found(bbox: list[float], score: float, label: int = 0) -> dict[str, Any]:
    return dict(image_id='a', category_id=label, bbox=bbox, score=score)


@pytest.mark.parametrize('seed', range(3))
def test_the_mean_precision_is_cocos_ap(seed: int, annotations: Path) -> None:
    """Also with crowds, images without objects, and a class without one."""
    results = predict(annotations, seed)
    expected = compute(CocoMetric, annotations, results)['bbox_mAP_50']
    objects = [dict(one, category_id=one['category_id'] - 5)
               for one in json.loads(annotations.read_text())['annotations']]
    boxes = [dict(image_id=image['img_id'], category_id=int(label), score=float(score),
                  bbox=[*box[:2].tolist(), *(box[2:] - box[:2]).tolist()]) for _, image in results
             for box, label, score in zip(image['bboxes'], image['labels'], image['scores'], strict=True)]
    cat, dog, emu = curves_of(objects, boxes, 3)
    assert emu is None  # no object, so nothing is divided by zero
    assert np.mean([cat.precision_from(), dog.precision_from()]) == pytest.approx(expected, abs=5e-4)  # rounded there


@pytest.mark.parametrize('objects, boxes, best', [
    ([true(BOX)], [found(BOX, 0.9)], (0.45, 1.)),
    ([true(BOX)], [found(BOX, 0.9), found(FAR, 0.5)], (0.7, 1.)),
    ([true(BOX)], [found(BOX, 0.5), found(FAR, 0.5)], (0.25, 2 / 3)),  # boxes of one score count together
    ([true(BOX)], [found(BOX, 0.9), found(BOX, 0.5)], (0.7, 1.)),  # an object is found once
    ([true(BOX), true(FAR)], [found(BOX, 0.9)], (0.45, 2 / 3)),
    ([true(BOX), true(FAR, iscrowd=1)], [found(FAR, 0.95), found(BOX, 0.9), found(FAR, 0.8)], (0.45, 1.)),
    ([true(BOX)], [found(FAR, 0.9)], None), ([true(BOX)], [], None), ([true(BOX)], [found(BOX, 0.9, label=1)], None)])
def test_the_best_score_is_between_boxes_that_match_and_others(
        objects: list, boxes: list, best: tuple[float, float] | None) -> None:
    curve, = curves_of(objects, boxes, 1)
    assert curve is not None and (curve.best() or ()) == pytest.approx(best or ())


NEXT, AFTER = (float(np.float32(0.5) + np.float32(2 ** -24) * step) for step in (1, 2))  # neighbours of a score


@example([(NEXT, True), (0.5, False)], 1)
@example([(AFTER, True), (NEXT, False)], 1)
@given(st.lists(st.tuples(st.floats(2 ** -7, 1, width=32), st.booleans()), max_size=8), st.integers(1, 9))
def test_boxes_above_the_best_score_have_the_best_f1(boxes: list[tuple[float, bool]], more: int) -> None:
    """Also where scores are neighbours, and rounded as the scores of predictions are."""
    scores = np.unique([score for score, _ in boxes])[::-1]
    found_at, hits_at = (np.array([sum(score >= least and (is_hit or not only_hits) for score, is_hit in boxes)
                                   for least in scores], int) for only_hits in (False, True))
    curve = Curve(int(hits_at.max(initial=0)) + more, scores, found_at, hits_at)
    if (best := curve.best()) is None:
        assert not hits_at.any()
        return
    threshold, f1 = best
    kept = np.float32(scores) > np.float32(threshold)
    assert curve.f1[kept.sum() - 1] == f1 == curve.f1.max() == curve.f1_above(np.array([threshold]))[0]


def test_many_classes_are_a_bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(module, 'write_figure', lambda path, figure: drawn.append(figure))
    curves = [Curve(3 + index, np.array([0.9]), np.array([2]), np.array([1])) for index in range(30)]
    draw_curves([*curves, None, None], [f'_{index}$' for index in range(32)], tmp_path / 'curves.png')
    draw_curves([None], ['a'], tmp_path / 'curves.png')
    legend = drawn[0].axes[1].get_legend()
    texts = [text.get_text() for text in legend.texts]
    assert len(drawn[0].axes[0].lines) == 30 and len(texts) == 10
    assert texts[0] == r' _29\$ (32 objects): F1 0.06 above 0.45'  # the most objects


def test_scores_are_found_for_the_weights_that_they_were_measured_with(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    curve = Curve(2, np.array([0.75]), np.array([2]), np.array([1]))
    for time in ('1', '2'):
        (tmp_path / f'test/{time}').mkdir(parents=True)
        write_thresholds(tmp_path / f'test/{time}', model, ['猫', 'none'], [curve, None])
    assert find_thresholds([tmp_path / 'no', tmp_path], model) == (
        tmp_path / 'test/2/thresholds.json', {'猫': 0.375})
    assert find_thresholds([tmp_path], other) is None
    (tmp_path / 'thresholds.json').write_text('{"classes": []}')
    assert refusal(find_thresholds, [tmp_path], model) == (
        f"{tmp_path}/thresholds.json cannot be used ('weights'): remove it, or test the checkpoint again.")
