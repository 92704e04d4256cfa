"""Predictions of an image are the same alone and in any batch: boxes, scores, masks and label maps."""
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.config import Config
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from cpvt_mm import make_batch_invariant
from openmmlab_runs.engine import load_config
from tests.conftest import ROOT, build_model, refusal

SIZES = [(64, 160), (100, 70), (160, 96), (90, 90), (33, 128), (128, 128), (65, 64)]
MASK_RCNN_ON_FPN = 'nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
# Few candidates with scores apart, so that rounding does not decide which of two is kept.
TWO_STAGE = {'model.test_cfg.rcnn.score_thr': 0.01, 'model.test_cfg.rpn.nms_pre': 60, 'model.test_cfg.rpn.max_per_img': 60}
PADS = {'model.data_preprocessor.test_cfg': dict(size_divisor=32)}


def load(name: str, **options: object) -> Config:
    cfg = load_config(ROOT / 'configs' / name, options)
    cfg.model.backbone.padding = 'exact'
    cfg.model.data_preprocessor.type = f'cpvt_mm.{cfg.model.data_preprocessor.type}'
    return cfg


CONFIGS: dict[str, Callable[[], Config]] = {
    'mask-rcnn': lambda: load(MASK_RCNN_ON_FPN, **TWO_STAGE),
    'mask-rcnn-sfp': lambda: load('toy/mask-rcnn_cpvt_sfp_toy-shapes.py', **TWO_STAGE, **{
        'model.neck.strides': [4, 8, 16, 32, 64], 'model.rpn_head.anchor_generator.strides': [4, 8, 16, 32, 64]}),
    'retinanet': lambda: load('boxes/retinanet_pyramid-cpvt-nano_fpn_boxes.py', **{
        'model.test_cfg.score_thr': 0.01, 'model.test_cfg.nms_pre': 60}),
    'upernet': lambda: load('toy/upernet_pyramid-cpvt-nano_toy-shapes.py', **PADS),
    'upernet-batch-norm': lambda: load('toy/upernet_pyramid-cpvt-nano_toy-shapes.py', **PADS, **{
        'model.decode_head.norm_cfg': dict(_delete_=True, type='BN')}),
    'upernet-sfp': lambda: load('toy/upernet_cpvt_sfp_toy-shapes.py', **PADS),
}


def built(cfg: Config) -> nn.Module:
    """A model in eval mode with random weights, in which no bias is zero and no norm is the identity."""
    model = build_model(cfg)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
        elif not name.startswith('backbone'):
            parameter.data = torch.randn_like(parameter) / parameter[0].numel()**0.5
    return model.eval()


def predict(model: nn.Module, images: list[Tensor]) -> list[dict[str, Tensor]]:
    """Predictions of each image, by name."""
    segments = hasattr(model, 'decode_head')
    samples = [(SegDataSample if segments else DetDataSample)(metainfo=dict(
        img_shape=tuple(image.shape[1:]), ori_shape=tuple(image.shape[1:]), scale_factor=(1., 1.))) for image in images]
    with torch.no_grad():
        outs = model.test_step(dict(inputs=images, data_samples=samples))
    return [dict(logits=out.seg_logits.data, labels=out.pred_sem_seg.data) if segments
            else dict(out.pred_instances.items()) for out in outs]


def differences(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of predictions of an image; share of cells for masks and label maps."""
    if 'logits' not in wanted:  # rounding may change the order of detections
        if len(found['bboxes']) != len(wanted['bboxes']):
            return dict(number=1.)
        order = torch.cdist(*(torch.cat([p['bboxes'], 1e3 * p['scores'][:, None], 1e3 * p['labels'][:, None]], dim=1)
                              for p in (wanted, found))).argmin(1)
        assert len(order.unique()) == len(order)
        found = {name: value[order] for name, value in found.items()}
    gaps = {name: (found[name].float() - value.float()).abs() for name, value in wanted.items()}
    return {name: (gap > 0).float().mean().item() if name in ('masks', 'labels') else gap.max().item()
            for name, gap in gaps.items()}
