"""Faster and Mask R-CNN give mmdet's boxes and masks, exported or not."""
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cpvt_mm.export.comparing import compare
from openmmlab_tools.checkpoints.loading import build
from projects.onnx_two_stage import TwoStage, to_two_stage
from tests.export import test_detector as one_stage
from tests.helpers import ROOT, refusal


def extractor(size: int) -> dict[str, Any]:
    return dict(type='SingleRoIExtractor', roi_layer=dict(type='RoIAlign', output_size=size, sampling_ratio=0),
                out_channels=8, featmap_strides=one_stage.STRIDES[:2], finest_scale=16)


FASTER = dict(
    type='FasterRCNN', **one_stage.PYRAMID, train_cfg=None,
    rpn_head=dict(type='RPNHead', in_channels=8, feat_channels=8, anchor_generator=one_stage.anchors(4)),
    roi_head=dict(
        type='StandardRoIHead', bbox_roi_extractor=extractor(7),
        bbox_head=dict(type='Shared2FCBBoxHead', in_channels=8, fc_out_channels=16, roi_feat_size=7, num_classes=4,
                       bbox_coder=dict(type='DeltaXYWHBBoxCoder', target_stds=[.1, .1, .2, .2]))),
    test_cfg=dict(
        rpn=dict(nms_pre=100, max_per_img=60, min_bbox_size=0, nms=dict(type='nms', iou_threshold=0.7)),
        rcnn=dict(score_thr=0.05, nms=one_stage.NMS, max_per_img=40)))
MASK = dict(FASTER, type='MaskRCNN', roi_head=dict(
    FASTER['roi_head'], mask_roi_extractor=extractor(14),
    mask_head=dict(type='FCNMaskHead', num_convs=1, in_channels=8, conv_out_channels=8, num_classes=4,
                   norm_cfg=dict(type='GN', num_groups=4))),
    test_cfg=dict(FASTER['test_cfg'], rcnn=dict(FASTER['test_cfg']['rcnn'], mask_thr_binary=0.5)))
# Each turns a branch of the code around.
OPTIONS = {
    'Faster R-CNN': (FASTER, {}), 'few proposals': (FASTER, {'test_cfg.rpn.max_per_img': 4}),
    'fewer proposals than may be': (FASTER, {'test_cfg.rpn.nms.iou_threshold': 0.1}),
    'one box for all classes': (FASTER, {'roi_head.bbox_head.reg_class_agnostic': True}),
    'not aligned': (FASTER, {'roi_head.bbox_roi_extractor.roi_layer': dict(
        type='RoIAlign', output_size=7, sampling_ratio=2, aligned=False)}),
    'Mask R-CNN': (MASK, {}), 'one mask for all classes': (MASK, {'roi_head.mask_head.class_agnostic': True})}


def detector(model: dict[str, Any], **options: Any) -> TwoStage:
    """Builds a detector in eval mode, with random weights that find boxes in noise."""
    torch.manual_seed(0)
    cfg = one_stage.config(model, **options)
    built = build(cfg, cfg.model).eval()
    wrapped, head = to_two_stage(built).eval(), built.roi_head.bbox_head
    one_stage.set_statistics(wrapped, {built.rpn_head.rpn_cls: (0., 2.), built.rpn_head.rpn_reg: (0., 0.3),
                                       head.fc_cls: (0., 1.5), head.fc_reg: (0., 1.)})
    return wrapped


@pytest.mark.parametrize('name', OPTIONS)
def test_boxes_and_masks_are_those_of_mmdet(name: str) -> None:
    model, options = OPTIONS[name]
    one_stage.assert_boxes_are_those_of_mmdet(detector(model, **options))


def test_a_mask_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('cpvt_mm.export.comparing.SHAPES', ((1, 64, 64),))
    model = detector(MASK)

    @torch.no_grad()
    def run(image: Tensor) -> list[Tensor]:
        *boxes, masks = model(image).values()
        return [*boxes, masks.index_put((torch.tensor(0), torch.tensor(5), torch.tensor(5)), masks[0, 5, 5] + 0.5)]

    (difference,), = compare(model, dict(torch=run))
    assert difference.largest == pytest.approx(0.5, abs=1e-3)


@pytest.mark.slow
def test_a_file_is_right_at_all_sizes(tmp_path: Path) -> None:
    model = detector(MASK, **{'test_cfg.rcnn.score_thr': 0.4})
    outputs, operators = one_stage.exported_operators(model, tmp_path / 'a.onnx')
    assert outputs == ['dets', 'labels', 'images', 'masks'] and {'NonMaxSuppression', 'RoiAlign'} <= operators


@pytest.mark.parametrize('base, name', [
    ('mmdet::cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py', 'CascadeRoIHead'),
    ('mmdet::panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py', 'PanopticFPN'),
    ('mmdet::detr/detr_r50_8xb2-150e_coco.py', 'DETR'),
    (ROOT / 'configs/toy/mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes.py', None),
    (ROOT / 'configs/cpvt/mask-rcnn_cpvt-ti_sfp_1x_coco.py', None)])
def test_another_head_is_named(base: str | Path, name: str | None) -> None:
    if name:
        assert refusal(to_two_stage, one_stage.on_meta(base)) == (
            f'a {name} cannot be exported, only Faster R-CNN and Mask R-CNN with their standard heads: export the '
            'backbone alone, with tools/deployment/export.py.')
    else:
        assert isinstance(to_two_stage(one_stage.on_meta(base)), TwoStage)
