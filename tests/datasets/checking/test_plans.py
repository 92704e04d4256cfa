from typing import Any

import pytest
from mmengine.config import Config

from cpvt_mm.datasets.checking import plans
from cpvt_mm.datasets.checking.findings import Kind
from cpvt_mm.datasets.checking.plans import plan_checks

COCO = dict(type='mmdet.CocoDataset', data_prefix=dict(img='a'))
PANOPTIC = dict(type='mmdet.CocoPanopticDataset', data_prefix=dict(img='a', seg='b'))
CITYSCAPES = dict(type='mmseg.CityscapesDataset')


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """For a dataset and a model, the heads that do not fit and the number of classes that labels are held against."""
    numbers: list[int | None] = []
    monkeypatch.setattr(plans, 'check_annotations', lambda cfg, number: numbers.append(number) or ([], []))

    def run(dataset: dict[str, Any], model: dict[str, Any]) -> tuple[list[str], int | None]:
        plan, = plan_checks(Config(dict(default_scope='mmengine', model=model, train_dataloader=dict(dataset=dataset))))
        assert all(finding.kind is Kind.NUM_CLASSES for finding in plan.findings)
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
