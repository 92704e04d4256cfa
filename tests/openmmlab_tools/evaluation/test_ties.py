"""The metric has the rule of the report: the order of boxes with equal scores in a file has no effect."""
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hotcoco import COCO, COCOeval
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO as PyCOCO
from pycocotools.cocoeval import COCOeval as PyCOCOeval

from openmmlab_tools.evaluation.box_report import Boxes, summarize
from openmmlab_tools.evaluation.metrics import CocoMetric
from openmmlab_tools.evaluation.ties import by_score, precision_of
from tests.openmmlab_tools.evaluation.conftest import CLASSES, compute, predict

LIMITS = [1, 3, 100]


def entries_of(samples: list[dict], decimals: int) -> list[dict]:
    return [dict(image_id=sample['img_id'], category_id=int(label) + 5, score=round(float(score), decimals),
                 bbox=[*box[:2].tolist(), *(box[2:] - box[:2]).tolist()])
            for sample in samples for box, label, score in zip(*map(
                sample['pred_instances'].get, ('bboxes', 'labels', 'scores')), strict=True)]


def precision(annotations: Path, boxes: list[dict]) -> np.ndarray:
    true = COCO(json.loads(annotations.read_text()))
    evaluation = COCOeval(true, true.load_res(by_score(boxes)), 'bbox')
    evaluation.params.max_dets = LIMITS
    evaluation.evaluate()
    evaluation.accumulate()
    return precision_of(evaluation)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 99), st.randoms(use_true_random=False))
def test_the_order_of_equal_boxes_has_no_effect(annotations: Path, seed: int, random: Any) -> None:
    """For all areas and limits, also where boxes of one score compete for an object."""
    boxes = entries_of(predict(annotations, seed), 1)
    first = precision(annotations, boxes)
    random.shuffle(boxes)
    assert np.array_equal(first, precision(annotations, boxes))


@pytest.mark.parametrize('seed', range(3))
def test_without_equal_scores_precision_is_that_of_pycocotools(annotations: Path, seed: int) -> None:
    boxes = entries_of(predict(annotations, seed), 9)
    assert len({one['score'] for one in boxes}) == len(boxes)
    true = PyCOCO()
    true.dataset = json.loads(annotations.read_text())
    true.createIndex()
    evaluation = PyCOCOeval(true, true.loadRes(boxes), 'bbox')
    evaluation.params.maxDets = LIMITS
    evaluation.evaluate()
    evaluation.accumulate()
    assert np.array_equal(precision(annotations, boxes), evaluation.eval['precision'])


def test_a_class_with_equal_scores_does_not_change_the_others(annotations: Path) -> None:
    boxes = entries_of(predict(annotations), 9)
    tied = [dict(one, score=0.5) if one['category_id'] == 5 else one for one in boxes]
    first, second = precision(annotations, boxes), precision(annotations, tied)
    assert np.array_equal(first[:, :, 1:], second[:, :, 1:]) and not np.array_equal(first[:, :, 0], second[:, :, 0])


@pytest.mark.parametrize('decimals', [0, 1])
def test_the_metric_and_the_report_agree_on_equal_scores(annotations: Path, decimals: int) -> None:
    samples, coco = predict(annotations), json.loads(annotations.read_text())
    for sample in samples:
        sample['pred_instances']['scores'] = sample['pred_instances']['scores'].round(decimals=decimals)
    values = compute(CocoMetric, annotations, samples)
    boxes = [dict(one, category_id=one['category_id'] - 4, id=number, area=one['bbox'][2] * one['bbox'][3])
             for number, one in enumerate(entries_of(samples, 9), start=1)]
    report = summarize(Boxes(CLASSES, coco['images'], [
        dict(annotation, category_id=annotation['category_id'] - 4) for annotation in coco['annotations']], boxes))
    for name, metric in (('AP', 'mAP'), ('AP50', 'mAP_50'), ('AP75', 'mAP_75')):
        assert report['metrics']['bbox'][name][0] == pytest.approx(values[f'coco/bbox_{metric}'], abs=5.01e-4)
