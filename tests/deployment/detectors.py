"""Small detectors of mmdet whose scores are far from one another, as after training."""
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn

from cpvt_mm.deployment.detector import Detector, to_detector
from cpvt_mm.loading import build

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


def save(model: Detector, path: Path) -> Path:
    torch.save(model.model.state_dict(), path)
    return path
