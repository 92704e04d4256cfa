"""Heads that choose among locations or queries, in float64: an image has the same result alone and in any batch."""
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from mmengine.config import Config
from torch import Tensor, nn

from cpvt_mm import make_batch_invariant
from cpvt_mm.swap import read_config, swap_backbone
from cpvt_mm.tokens.batch_info import told_about
from tests.conftest import UPERNET
from tests.test_batch_invariance import PADS, SIZES, TWO_STAGE, built, predict
from tests.test_preprocessors import exact

QUERY = {'encoder.num_layers': 1, 'decoder.num_layers': 2, 'num_queries': 30, 'test_cfg.max_per_img': 30,
         'bbox_head.num_classes': 5}
MANY = {'num_queries': 200, 'test_cfg.max_per_img': 200, 'bbox_head.num_classes': 1}  # for 85 to 350 locations
MASKS = {'panoptic_head.num_queries': 10, 'panoptic_head.transformer_decoder.num_layers': 4}


def mmdet(name: str, options: dict[str, Any] = {}) -> Config:
    """A config that mmdet ships, with the nano pyramid."""
    cfg = swap_backbone(read_config(f'mmdet::{name}'), 'nano')
    cfg.merge_from_dict({'model.' + key.removeprefix('model.'): value for key, value in options.items()})
    cfg.model.backbone.padding = 'exact'
    cfg.model.data_preprocessor.update(type='cpvt_mm.DetDataPreprocessor', pad_size_divisor=32)
    return cfg


def mmseg_mask2former() -> Config:
    """The head of mmseg with mmdet's options, on the segmentor of the toy config."""
    head = mmdet('mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', {
        **MASKS, 'panoptic_head.pixel_decoder.encoder.num_layers': 1}).model.panoptic_head
    for key in ('num_things_classes', 'num_stuff_classes'):
        head.pop(key)
    head.update(type='mmseg.Mask2FormerHead', num_classes=5, align_corners=False)
    head.loss_cls.class_weight = [1.] * 5 + [0.1]
    head.pixel_decoder.type = 'mmdet.MSDeformAttnPixelDecoder'
    for loss in (head.loss_cls, head.loss_mask, head.loss_dice):
        loss.type = f'mmdet.{loss.type}'
    cfg = exact(UPERNET, PADS)
    cfg.model.decode_head = head
    return cfg


CONFIGS: dict[str, Callable[[], Config]] = {
    'detr': partial(mmdet, 'detr/detr_r50_8xb2-150e_coco.py', QUERY),
    'deformable-detr': partial(mmdet, 'deformable_detr/deformable-detr_r50_16xb2-50e_coco.py', QUERY),
    'two-stage': partial(mmdet, 'deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco.py', QUERY),
    'dino': partial(mmdet, 'dino/dino-4scale_r50_8xb2-12e_coco.py', QUERY),
    'ddq': partial(mmdet, 'ddq/ddq-detr-4scale_r50_8xb2-12e_coco.py', {**QUERY, 'test_cfg.max_per_img': 3}),
    'mask2former': partial(mmdet, 'mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', {
        **MASKS, 'panoptic_head.pixel_decoder.encoder.num_layers': 1}),
    'maskformer': partial(mmdet, 'maskformer/maskformer_r50_ms-16xb1-75e_coco.py', {
        **MASKS, 'test_cfg.instance_on': True, 'test_cfg.panoptic_on': False, 'panoptic_head.pixel_decoder.encoder.num_layers': 1}),
    **{f'{kind}-small': partial(mmdet, name, {**QUERY, **MANY}) for kind, name in (
        ('two-stage', 'deformable_detr/deformable-detr-refine-twostage_r50_16xb2-50e_coco.py'),
        ('dino', 'dino/dino-4scale_r50_8xb2-12e_coco.py'))},
    'ddq-small': partial(mmdet, 'ddq/ddq-detr-4scale_r50_8xb2-12e_coco.py', {**QUERY, **MANY, 'test_cfg.max_per_img': 3}),
    'mask2former-mmseg': lambda: mmseg_mask2former(),
    'rtmdet': partial(mmdet, 'rtmdet/rtmdet_l_8xb32-300e_coco.py'),
    'fcos': partial(mmdet, 'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco.py'),
    'atss': partial(mmdet, 'atss/atss_r50_fpn_1x_coco.py'),
    'cascade': partial(mmdet, 'cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py', TWO_STAGE)}


def in_float64(kind: str) -> nn.Module:
    """A model with random weights, and a preprocessor, in float64."""
    model = built(CONFIGS[kind]()).double()

    def double(_: nn.Module, args: object, data: dict[str, Any]) -> dict[str, Any]:
        told = told_about(data['inputs'])
        assert told
        return dict(data, inputs=told.attach(data['inputs'].double()))

    model.data_preprocessor.register_forward_hook(double)
    return model
