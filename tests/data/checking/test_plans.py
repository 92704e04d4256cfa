from typing import Any

import pytest
from mmengine.config import Config

from cpvt_mm.data.checking import plans
from cpvt_mm.data.checking.findings import Kind
from cpvt_mm.data.checking.plans import plan_checks

COCO = dict(type='mmdet.CocoDataset', data_prefix=dict(img='a'))
PANOPTIC = dict(type='mmdet.CocoPanopticDataset', data_prefix=dict(img='a', seg='b'))
CITYSCAPES = dict(type='mmseg.CityscapesDataset')


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """For a dataset and a model, the heads that do not fit and the number of classes that labels are held against."""
    numbers: list[int | None] = []
    monkeypatch.setattr(plans, 'check_annotations', lambda cfg, number, ignored: numbers.append(number) or ([], []))

    def run(dataset: dict[str, Any], model: dict[str, Any]) -> tuple[list[str], int | None]:
        plan, = plan_checks(Config(dict(default_scope='mmengine', model=model, train_dataloader=dict(dataset=dataset))))
        assert all(finding.kind in (Kind.NUM_CLASSES, Kind.TOO_FEW_CLASSES) for finding in plan.findings)
        return [finding.file for finding in plan.findings], numbers.pop()

    return run


@pytest.mark.parametrize('dataset, model, number', [
    # STDC
    (CITYSCAPES, dict(decode_head=dict(num_classes=19), auxiliary_head=[dict(num_classes=19), dict(num_classes=2)]),
     19),
    # HTC
    (COCO, dict(rpn_head=dict(num_classes=1), roi_head=dict(bbox_head=[dict(num_classes=80)] * 3,
                                                            semantic_head=dict(num_classes=183))), 80),
    # Panoptic FPN
    (PANOPTIC, dict(roi_head=dict(bbox_head=dict(num_classes=80)), semantic_head=dict(num_classes=53)), None),
    # Grounding DINO
    (dict(COCO, return_classes=True), dict(bbox_head=dict(num_classes=256)), None),
])
def test_heads_of_other_classes_are_no_fault(heads: Any, dataset: dict, model: dict, number: int | None) -> None:
    assert heads(dataset, model) == ([], number)


def test_heads_that_do_not_fit_are_named(heads: Any) -> None:
    assert heads(COCO, dict(roi_head=dict(bbox_head=[dict(num_classes=80), dict(num_classes=3)]))) == (
        ['model.roi_head.bbox_head.1.num_classes'], 3)
    assert heads(CITYSCAPES, dict(decode_head=[dict(num_classes=19), dict(num_classes=4)])) == (
        ['model.decode_head.1.num_classes'], 4)


@pytest.mark.parametrize('decode, auxiliary, metric, train, val', [
    ({}, [], {}, {255}, {255}),
    (dict(ignore_index=11), dict(ignore_index=11), dict(ignore_index=11), {11}, {11}),
    (dict(ignore_index=11), [dict()], [dict(ignore_index=11), dict()], set(), set()),
])
def test_ignored_labels_are_those_that_all_heads_and_metrics_ignore(
        decode: Any, auxiliary: Any, metric: Any, train: set, val: set, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(plans, 'check_annotations', lambda cfg, number, ignored: found.append(ignored) or ([], []))
    list(plan_checks(Config(dict(
        default_scope='mmengine', model=dict(decode_head=decode, auxiliary_head=auxiliary), val_evaluator=metric,
        train_dataloader=dict(dataset=CITYSCAPES), val_dataloader=dict(dataset=dict(CITYSCAPES, ann_file='a'))))))
    assert found == [train, val]
