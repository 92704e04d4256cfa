"""RetinaNet gives mmdet's boxes, exported or not; so does the operator that it needs."""
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
from cpvt_mm.export.detector import NO_BOX, Detector, nms, to_detector
from openmmlab_tools.checkpoints.loading import build
from openmmlab_tools.engine import load_config
from tests.helpers import ROOT, refusal

PYRAMID = dict(
    backbone=dict(type='cpvt_mm.PyramidCPVT', out_indices=(0, 1), arch=dict(
        embed_dims=(12, 24, 24, 24), depths=(1,) * 4, num_heads=(3,) * 4, mlp_ratios=(2,) * 4, sr_ratios=(4, 2, 2, 2))),
    neck=dict(type='FPN', in_channels=[12, 24], out_channels=8, num_outs=3))
STRIDES = [4, 8, 16]
NMS = dict(type='nms', iou_threshold=0.5)


def anchors(scale: int) -> dict[str, Any]:
    return dict(type='AnchorGenerator', scales=[scale], ratios=[0.5, 1., 2.], strides=STRIDES)


RETINA = dict(
    type='RetinaNet', **PYRAMID,
    bbox_head=dict(type='RetinaHead', num_classes=4, in_channels=8, feat_channels=8, stacked_convs=1,
                   anchor_generator=anchors(4)),
    test_cfg=dict(nms_pre=100, min_bbox_size=0, score_thr=0.05, nms=NMS, max_per_img=40))


def config(model: dict[str, Any], **options: Any) -> Config:
    """Makes a config of a model, with `options` such as `{'test_cfg.nms_pre': 5}`."""
    cfg = Config(dict(default_scope='mmdet', model=model))
    cfg.merge_from_dict({f'model.{key}': value for key, value in options.items()})
    return cfg


def detector(**options: Any) -> Detector:
    """Builds a RetinaNet in eval mode, with random weights that find boxes in noise."""
    torch.manual_seed(0)
    cfg = config(RETINA, **options)
    built = build(cfg, cfg.model).eval()
    wrapped = to_detector(built).eval()
    set_statistics(wrapped, {built.bbox_head.retina_cls: (-4., 1.), built.bbox_head.retina_reg: (0., 0.3)})
    return wrapped


@torch.no_grad()
def set_statistics(model: nn.Module, layers: dict[Any, tuple[float, float]]) -> None:
    """Gives each channel of layers' outputs on noise this mean and standard deviation, from the first layer on."""
    for layer, (mean, std) in layers.items():
        seen: list[Tensor] = []
        hook = layer.register_forward_hook(
            lambda module, inputs, output, seen=seen: seen.append(output.movedim(1, -1).flatten(0, -2)))
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


@pytest.mark.parametrize('iou_threshold', KEPT)
def test_boxes_that_overlap_with_a_better_one_are_suppressed(iou_threshold: float) -> None:
    assert nms(BOXES, SCORES, iou_threshold, 5).tolist() == KEPT[iou_threshold]
    assert nms(BOXES, SCORES, iou_threshold, 1).tolist() == [[0, 1], [1, 4]]
    assert nms(BOXES, torch.full_like(SCORES, NO_BOX), iou_threshold, 5).shape == (0, 2)


# Each turns a branch of the code around.
OPTIONS = {
    'RetinaNet': {}, 'fewer candidates': {'test_cfg.nms_pre': 5},
    'few boxes': {'test_cfg.max_per_img': 3, 'test_cfg.score_thr': 0.2},
    'large boxes': {'test_cfg.min_bbox_size': 20},
    'softmax': {'bbox_head.loss_cls': dict(type='CrossEntropyLoss'), 'test_cfg.score_thr': 0.002},
    'beyond the image': {'bbox_head.bbox_coder': dict(type='DeltaXYWHBBoxCoder', clip_border=False)}}


def assert_boxes_are_those_of_mmdet(wrapped: Detector) -> None:
    """Without an export; the arithmetic is the same but for the order of sums."""

    def run(image: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [*wrapped(image).values()]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('cpvt_mm.export.comparing.SHAPES', ((1, 1, 1), (2, 33, 47), (1, 128, 96)))
        tiny, *differences = (one for one, in compare(wrapped, dict(torch=run)))
    assert all(difference.largest < 1e-4 and difference.count > 1 for difference in differences)
    assert tiny.largest < 1e-4


@pytest.mark.parametrize('name', OPTIONS)
def test_boxes_are_those_of_mmdet(name: str) -> None:
    assert_boxes_are_those_of_mmdet(detector(**OPTIONS[name]))


def exported_operators(wrapped: Detector, path: Path) -> tuple[list[str], set[str]]:
    """Exports and compares at all sizes; returns the names of outputs and operators. Nothing is in the smallest image.
    """
    with exported(wrapped, path, {}) as runs:
        by_size = list(compare(wrapped, runs))
    assert all(difference.is_small for differences in by_size for difference in differences)
    has_boxes = [[difference.count > 0 for difference in differences] for differences in by_size]
    assert has_boxes == [[False] * len(runs)] + [[True] * len(runs)] * 9
    graph = onnx.load(path).graph
    assert {node.domain for node in graph.node} == {''}
    return [output.name for output in graph.output], {node.op_type for node in graph.node}


@pytest.mark.slow
def test_a_file_is_right_at_all_sizes(tmp_path: Path) -> None:
    outputs, operators = exported_operators(detector(**{'test_cfg.score_thr': 0.09}), tmp_path / 'a.onnx')
    assert outputs == ['dets', 'labels', 'images'] and 'NonMaxSuppression' in operators


def test_what_cannot_be_exported_is_told(tmp_path: Path) -> None:
    assert "nms={'type': 'soft_nms', 'iou_threshold': 0.5} in its" in refusal(
        detector, **{'test_cfg.nms.type': 'soft_nms'})
    assert 'random weights finds no boxes to compare: pass a --ch' in refusal(load_part, config(RETINA), 'detector')
    told = refusal(ExitStack().enter_context, exported(detector(), tmp_path / 'a.pt2', {}))
    assert 'a detector cannot be exported to .pt2, ' in told and told.endswith('the suffix .onnx.')
    assert not any(tmp_path.iterdir())


def on_meta(path: str | Path) -> nn.Module:
    """Builds the model of a config, which takes no memory."""
    cfg = get_config(path) if '::' in str(path) else load_config(path)
    with torch.device('meta'):
        return build(cfg, cfg.model)


@pytest.mark.parametrize('path, name', [
    (ROOT / 'configs/pyramid_cpvt/retinanet_pyramid-cpvt-t_fpn_1x_coco.py', None),
    ('mmdet::fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py', 'FCOSHead'),
    ('mmdet::detr/detr_r50_8xb2-150e_coco.py', 'DETRHead'), ('mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', 'MaskR')])
def test_another_head_is_named(path: str | Path, name: str | None) -> None:
    model = on_meta(path)
    if name is None:
        assert isinstance(to_detector(model), Detector)
    else:
        told = refusal(to_detector, model)
        assert told.startswith(f'a {name}') and 'cannot be exported, only a RetinaNet' in told
