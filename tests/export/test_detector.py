"""Detectors give mmdet's boxes, exported or not; so do the operators that they need."""
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from mmengine.config import Config
from mmengine.hub import get_config
from torch import Tensor, nn

from cpvt_mm.export import exported, load_part
from cpvt_mm.export.comparing import compare
from cpvt_mm.export.detector import NO_BOX, Detector, nms, roi_align, to_detector
from cpvt_mm.export.exporting import load_onnx, write_onnx
from openmmlab_runs.checkpoints.loading import build
from openmmlab_runs.engine import load_config
from tests.conftest import ROOT, refusal

PYRAMID = dict(
    backbone=dict(type='cpvt_mm.PyramidCPVT', out_indices=(0, 1), arch=dict(
        embed_dims=(12, 24, 24, 24), depths=(1,) * 4, num_heads=(3,) * 4, mlp_ratios=(2,) * 4, sr_ratios=(4, 2, 2, 2))),
    neck=dict(type='FPN', in_channels=[12, 24], out_channels=8, num_outs=3))
STRIDES = [4, 8, 16]
CODER = dict(type='DeltaXYWHBBoxCoder', target_means=[0.] * 4, target_stds=[.1, .1, .2, .2])
NMS = dict(type='nms', iou_threshold=0.5)


def anchors(scale: int) -> dict[str, Any]:
    return dict(type='AnchorGenerator', scales=[scale], ratios=[0.5, 1., 2.], strides=STRIDES)


def extractor(size: int) -> dict[str, Any]:
    return dict(type='SingleRoIExtractor', roi_layer=dict(type='RoIAlign', output_size=size, sampling_ratio=0),
                out_channels=8, featmap_strides=STRIDES[:2], finest_scale=16)


RETINA = dict(
    type='RetinaNet', **PYRAMID,
    bbox_head=dict(type='RetinaHead', num_classes=4, in_channels=8, feat_channels=8, stacked_convs=1,
                   anchor_generator=anchors(4)),
    test_cfg=dict(nms_pre=100, min_bbox_size=0, score_thr=0.05, nms=NMS, max_per_img=40))
FASTER = dict(
    type='FasterRCNN', **PYRAMID, train_cfg=None,
    rpn_head=dict(type='RPNHead', in_channels=8, feat_channels=8, anchor_generator=anchors(4)),
    roi_head=dict(
        type='StandardRoIHead', bbox_roi_extractor=extractor(7),
        bbox_head=dict(type='Shared2FCBBoxHead', in_channels=8, fc_out_channels=16, roi_feat_size=7, num_classes=4,
                       bbox_coder=CODER)),
    test_cfg=dict(
        rpn=dict(nms_pre=100, max_per_img=60, min_bbox_size=0, nms=dict(type='nms', iou_threshold=0.7)),
        rcnn=dict(score_thr=0.05, nms=NMS, max_per_img=40)))
MASK = dict(FASTER, type='MaskRCNN', roi_head=dict(
    FASTER['roi_head'], mask_roi_extractor=extractor(14),
    mask_head=dict(type='FCNMaskHead', num_convs=1, in_channels=8, conv_out_channels=8, num_classes=4,
                   norm_cfg=dict(type='GN', num_groups=4))),
    test_cfg=dict(FASTER['test_cfg'], rcnn=dict(FASTER['test_cfg']['rcnn'], mask_thr_binary=0.5)))
MODELS = {'RetinaNet': RETINA, 'Faster R-CNN': FASTER, 'Mask R-CNN': MASK}


def config(model: dict[str, Any], **options: Any) -> Config:
    """Makes a config of a model, with `options` such as `{'test_cfg.nms_pre': 5}`."""
    cfg = Config(dict(default_scope='mmdet', model=model))
    cfg.merge_from_dict({f'model.{key}': value for key, value in options.items()})
    return cfg


def detector(model: dict[str, Any], **options: Any) -> Detector:
    """Builds a detector in eval mode, with random weights that find boxes in noise."""
    torch.manual_seed(0)
    cfg = config(model, **options)
    built = build(cfg, cfg.model).eval()
    wrapped = to_detector(built).eval()
    if hasattr(built, 'roi_head'):
        head = built.roi_head.bbox_head
        layers = {built.rpn_head.rpn_cls: (0., 2.), built.rpn_head.rpn_reg: (0., 0.3),
                  head.fc_cls: (0., 1.5), head.fc_reg: (0., 1.)}
    else:
        layers = {built.bbox_head.retina_cls: (-4., 1.), built.bbox_head.retina_reg: (0., 0.3)}
    for layer, (mean, std) in layers.items():  # what follows sees what those before it give
        _set_statistics(wrapped, layer, mean, std)
    return wrapped


@torch.no_grad()
def _set_statistics(model: nn.Module, layer: Any, mean: float, std: float) -> None:
    """Gives each channel of a layer's outputs on noise this mean and standard deviation."""
    seen: list[Tensor] = []
    hook = layer.register_forward_hook(lambda module, inputs, output: seen.append(output.movedim(1, -1).flatten(0, -2)))
    model(torch.randn(2, 3, 128, 128))
    hook.remove()
    channels = torch.cat(seen)
    factor = std / channels.std(0)
    layer.bias.copy_(mean + factor * (layer.bias - channels.mean(0)))
    layer.weight.mul_(factor.reshape(-1, *[1] * (layer.weight.ndim - 1)))


BOXES = torch.tensor([[[0., 0, 10, 10], [1, 0, 10, 10], [20, 20, 30, 30], [0, 5, 10, 10], [40, 40, 40, 40]],
                      [[0., 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [50, 50, 90, 60], [50, 50, 90, 61]]])
SCORES = torch.tensor([[0.5, 0.9, 0.7, 0.6, 0.1], [NO_BOX, 0.2, 0.1, 0.7, 0.8]])
# The overlap of boxes 1 and 3 of the first image is 45 / 95.
KEPT = {0.4: [[0, 1], [0, 2], [0, 4], [1, 4], [1, 1]], 0.5: [[0, 1], [0, 2], [0, 3], [0, 4], [1, 4], [1, 1]]}
# Inside, across the border, of no size, and larger than the map.
ROIS = torch.tensor([[0., 3, 4, 20, 30], [1, 30, 20, 44, 36], [1, 8, 8, 8, 8], [0, 0, 0, 48, 40]])


class Operators(nn.Module):
    """All operators with several arguments; the boxes are constants."""

    def __init__(self) -> None:
        super().__init__()
        for name, value in dict(boxes=BOXES, scores=SCORES, rois=ROIS).items():
            self.register_buffer(name, value)

    def forward(self, x: Tensor) -> list[Tensor]:
        kept = [nms(self.boxes, self.scores, threshold, count) for threshold in KEPT for count in (1, 5)]
        crops = [roi_align(x, self.rois, [4, 3], 0.25, ratio, aligned) for ratio in (0, 2) for aligned in (True, False)]
        return [*kept, *crops, roi_align(x, self.rois[:0], [4, 3], 0.25, 0, True)]


@pytest.mark.parametrize('iou_threshold', KEPT)
def test_boxes_that_overlap_with_a_better_one_are_suppressed(iou_threshold: float) -> None:
    assert nms(BOXES, SCORES, iou_threshold, 5).tolist() == KEPT[iou_threshold]
    assert nms(BOXES, SCORES, iou_threshold, 1).tolist() == [[0, 1], [1, 4]]
    assert nms(BOXES, torch.full_like(SCORES, NO_BOX), iou_threshold, 5).shape == (0, 2)


@pytest.mark.slow
def test_onnxruntime_computes_the_same(tmp_path: Path) -> None:
    model, x = Operators(), torch.randn(2, 5, 10, 12)
    write_onnx(tmp_path / 'a.onnx', torch.export.export(model, (x,)), {})
    outputs = load_onnx(tmp_path / 'a.onnx')(x)
    for output, expected in zip(outputs, model(x), strict=True):
        assert output.shape == expected.shape
        # Crops are means of four neighbours weighted by distances: some roundings of numbers below 4.
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)


# Each turns a branch of the code around.
OPTIONS = {
    'RetinaNet': (RETINA, {}), 'fewer candidates': (RETINA, {'test_cfg.nms_pre': 5}),
    'few boxes': (RETINA, {'test_cfg.max_per_img': 3, 'test_cfg.score_thr': 0.2}),
    'large boxes': (RETINA, {'test_cfg.min_bbox_size': 20}),
    'softmax': (RETINA, {'bbox_head.loss_cls': dict(type='CrossEntropyLoss'), 'test_cfg.score_thr': 0.002}),
    'beyond the image': (RETINA, {'bbox_head.bbox_coder': dict(type='DeltaXYWHBBoxCoder', clip_border=False)}),
    'Faster R-CNN': (FASTER, {}), 'few proposals': (FASTER, {'test_cfg.rpn.max_per_img': 4}),
    'fewer proposals than may be': (FASTER, {'test_cfg.rpn.nms.iou_threshold': 0.1}),
    'one box for all classes': (FASTER, {'roi_head.bbox_head.reg_class_agnostic': True}),
    'not aligned': (FASTER, {'roi_head.bbox_roi_extractor.roi_layer': dict(
        type='RoIAlign', output_size=7, sampling_ratio=2, aligned=False)}),
    'Mask R-CNN': (MASK, {}), 'one mask for all classes': (MASK, {'roi_head.mask_head.class_agnostic': True})}


def run_eagerly(model: Detector, image: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [*model(image).values()]


@pytest.mark.parametrize('name', OPTIONS)
def test_boxes_are_those_of_mmdet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an export; the arithmetic is the same but for the order of sums."""
    monkeypatch.setattr('cpvt_mm.export.comparing.SHAPES', ((1, 1, 1), (2, 33, 47), (1, 128, 96)))
    model, options = OPTIONS[name]
    wrapped = detector(model, **options)
    tiny, *differences = compare(wrapped, lambda image: run_eagerly(wrapped, image))
    assert all(difference.largest < 1e-4 and difference.count > 1 for difference in differences)
    assert tiny.largest < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize('name, threshold', [('RetinaNet', {'test_cfg.score_thr': 0.09}),
                                             ('Mask R-CNN', {'test_cfg.rcnn.score_thr': 0.4})])
def test_files_are_right_at_all_sizes(name: str, threshold: dict[str, float], tmp_path: Path) -> None:
    """The threshold is such that nothing is found in the smallest image."""
    wrapped, path = detector(MODELS[name], **threshold), tmp_path / 'a.onnx'
    torch.compiler.reset()
    with exported(wrapped, path, {}) as run:
        differences = list(compare(wrapped, run))
    assert all(difference.is_small for difference in differences)
    assert [difference.count > 0 for difference in differences] == [False] + [True] * 9
    graph = onnx.load(path).graph
    assert [output.name for output in graph.output] == ['dets', 'labels', 'images', 'masks'][:len(graph.output)]
    assert len(graph.output) == (3 if name == 'RetinaNet' else 4)
    assert {node.domain for node in graph.node} == {''}
    operators = {node.op_type for node in graph.node}
    assert 'NonMaxSuppression' in operators and ('RoiAlign' in operators) == (name == 'Mask R-CNN')


def test_what_cannot_be_exported_is_told(tmp_path: Path) -> None:
    told = refusal(detector, FASTER, **{'test_cfg.rcnn.nms.type': 'soft_nms'})
    assert "nms={'type': 'soft_nms', 'iou_threshold': 0.5} in its test_cfg" in told
    told = refusal(load_part, config(RETINA), 'detector')
    assert 'random weights finds no boxes to compare: pass a --checkpoint' in told
    told = refusal(ExitStack().enter_context, exported(detector(RETINA), tmp_path / 'a.pt2', {}))
    assert 'a detector cannot be exported to .pt2, ' in told and told.endswith('the suffix .onnx.')
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize('base, name', [
    ('fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', 'FCOSHead'),
    ('cascade_rcnn/cascade-mask-rcnn_r50_fpn_1x_coco.py', 'CascadeRoIHead'),
    ('panoptic_fpn/panoptic-fpn_r50_fpn_1x_coco.py', 'PanopticFPN'), ('detr/detr_r50_8xb2-150e_coco.py', 'DETRHead')])
def test_another_head_is_named(base: str, name: str) -> None:
    cfg = get_config(f'mmdet::{base}')
    with torch.device('meta'):  # takes no memory
        model = build(cfg, cfg.model)
    assert refusal(to_detector, model) == (
        f'a {name} cannot be exported, only RetinaNet, Faster R-CNN and Mask R-CNN with their standard heads: export '
        'the backbone alone, with --part backbone.')


@pytest.mark.parametrize('name', ['toy/mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes',
                                  'cpvt/mask-rcnn_cpvt-ti_sfp_1x_coco',
                                  'pyramid_cpvt/retinanet_pyramid-cpvt-t_fpn_1x_coco'])
def test_configs_of_the_project_can_be_exported(name: str) -> None:
    cfg = load_config(ROOT / f'configs/{name}.py')
    with torch.device('meta'):
        assert isinstance(to_detector(build(cfg, cfg.model)), Detector)
