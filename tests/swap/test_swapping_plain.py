"""CPVT in configs of plain transformers, in the shapes that mmseg and mmdet's ViTDet project give them."""
import pytest
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DefaultScope
from torch import Tensor, nn

import cpvt_mm
from cpvt_mm.registry import MODELS
from cpvt_mm.swap import CannotSwap, swap_backbone
from cpvt_mm.zoo.members import IMAGENET
from lab.from_config import build_model, build_plain_optim_wrapper, random_batch
from tests.helpers import refusal
from tests.swap.test_swapping import get

ARCH = dict(embed_dims=24, depth=6, num_heads=2)
VIT = dict(type='VisionTransformer', img_size=(64, 64), embed_dims=12, num_layers=6, num_heads=2,
           out_indices=(1, 3, 4, 5))
SMALL = dict(num_classes=3, norm_cfg=dict(type='BN'), channels=8)
ALL = (0, 1, 2, 3)
OPTIM_WRAPPER = dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05))


@MODELS.register_module(force=True)
class ViT(nn.Module):
    """Returns the map of its last block in no sequence, as that of ViTDet does."""

    def __init__(self, embed_dim: int, depth: int) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, embed_dim, 16, 16)
        self.blocks = nn.ModuleList(nn.Conv2d(embed_dim, embed_dim, 1) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        return nn.Sequential(self.patch_embed, *self.blocks)(x)


def segmentor(backbone: dict, neck: dict | None, decode_head: dict, auxiliary_head: object = None) -> Config:
    return Config(dict(
        default_scope='mmseg', optim_wrapper=OPTIM_WRAPPER,
        model=dict(type='EncoderDecoder', data_preprocessor=dict(type='SegDataPreProcessor', size=(64, 64)),
                   backbone=backbone, neck=neck, decode_head=decode_head, auxiliary_head=auxiliary_head,
                   train_cfg=dict(), test_cfg=dict(mode='slide', crop_size=(64, 64), stride=(48, 48)))))


UPER, FCN = dict(type='UPerHead', in_index=ALL, **SMALL), dict(type='FCNHead', **SMALL)
SEGMENTORS = {
    'vit': (VIT, None, dict(UPER, in_channels=[12] * 4), dict(FCN, in_channels=12, in_index=3)),
    'setr mla': (VIT, dict(type='MLANeck', in_channels=[12] * 4, out_channels=16),
                 dict(type='SETRMLAHead', in_channels=(16,) * 4, in_index=ALL, mla_channels=2, **SMALL),
                 [dict(FCN, in_channels=16, in_index=i, num_convs=0, concat_input=False, channels=16) for i in ALL]),
    'beit': (dict(VIT, type='BEiT', qv_bias=True), dict(type='Feature2Pyramid', embed_dim=12, rescales=[4, 2, 1, 0.5]),
             dict(UPER, in_channels=[12] * 4), dict(FCN, in_channels=12, in_index=2))}


def vitdet() -> Config:
    return Config(dict(
        default_scope='mmdet', optim_wrapper=OPTIM_WRAPPER,
        model=dict(type='RetinaNet', data_preprocessor=dict(type='DetDataPreprocessor', pad_size_divisor=32),
                   backbone=dict(type='cpvt_mm.ViT', embed_dim=12, depth=6),
                   neck=dict(type='SimpleFPN', backbone_channel=12, in_channels=[3, 6, 12, 12], out_channels=16,
                             num_outs=5, norm_cfg=dict(type='LN2d')),
                   bbox_head=dict(type='RetinaHead', num_classes=3, in_channels=16, feat_channels=16,
                                  anchor_generator=dict(type='AnchorGenerator', strides=[4, 8, 16, 32, 64],
                                                        ratios=[1.], octave_base_scale=4, scales_per_octave=1)),
                   train_cfg=dict(assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4),
                                  allowed_border=-1, pos_weight=-1),
                   test_cfg=dict(nms_pre=10, score_thr=0., nms=dict(type='nms', iou_threshold=0.5), max_per_img=10))))


def shaped(name: str) -> Config:
    return vitdet() if name == 'vitdet' else segmentor(*SEGMENTORS[name])


SHAPES = {
    'vit': {'decode_head.in_channels': [24] * 4, 'auxiliary_head.in_channels': 24},
    'setr mla': {'neck.in_channels': [24] * 4, 'decode_head.in_channels': (16,) * 4,
                 'auxiliary_head.0.in_channels': 16},
    'beit': {'neck.embed_dim': 24, 'decode_head.in_channels': [24] * 4, 'auxiliary_head.in_channels': 24},
    'vitdet': {'neck': dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=24, out_channels=16, num_outs=5),
             'bbox_head.in_channels': 16}}


@pytest.mark.parametrize('shape', SHAPES)
def test_what_depends_on_channels_follows_and_the_model_trains_and_predicts(shape: str) -> None:
    old = shaped(shape)
    before = old.to_dict()
    cfg = swap_backbone(old, ARCH, optimizer=True, backbone='CPVT').config
    assert old.to_dict() == before
    expected = dict(type='cpvt_mm.CPVT', arch=ARCH, drop_path_rate=0.1, cls_token=False)
    if shape != 'vitdet':
        expected |= dict(img_size=(64, 64), out_indices=(1, 3, 4, 5))
    assert cfg.model.backbone == expected
    assert {key: get(cfg.model, key) for key in SHAPES[shape]} == SHAPES[shape]
    assert cfg.model.test_cfg == old.model.test_cfg
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = revert_sync_batchnorm(build_model(cfg))
        model.init_weights()
        block = model.backbone.blocks[0].attn.q.weight
        before = block.detach().clone()
        losses = model.train().train_step(random_batch(cfg, (64, 64)), build_plain_optim_wrapper(model, cfg))
        assert losses['loss'].isfinite() and not torch.equal(block, before)
        with torch.no_grad():
            assert len(model.eval().test_step(random_batch(cfg, (64, 64)))) == 2


def test_the_wrong_backbone_is_refused_and_the_other_named() -> None:
    for shape in ('vit', 'vitdet'):
        assert 'use CPVT instead of PyramidCPVT' in refusal(swap_backbone, shaped(shape), error=CannotSwap)
    cfg = shaped('vit')
    cfg.model.backbone = dict(type='mmdet.ResNet', depth=18)
    assert 'use PyramidCPVT instead of CPVT' in refusal(swap_backbone, cfg, backbone='CPVT', error=CannotSwap)


@pytest.mark.parametrize('name', ['deit-small', 'dinov2-small-reg4', 'dinov3-small-plus', 'tipsv2-base'])
def test_a_name_of_released_weights_brings_their_arguments_weights_and_normalization(name: str) -> None:
    old = shaped('vit')
    cfg = swap_backbone(old, backbone=name).config
    with DefaultScope.overwrite_default_scope('mmseg'), torch.device('meta'):
        held = build_model(cfg).backbone
        assert held.state_dict().keys() == cpvt_mm.create_backbone(name, out_indices=held.out_indices
                                                                   ).state_dict().keys()
    assert cfg.model.backbone.init_cfg == dict(type='Pretrained', checkpoint=f'cpvt_mm://{name}')
    mean, std = ([0] * 3, [255] * 3) if name.startswith('tips') else map(list, IMAGENET)
    images = cfg.model.data_preprocessor
    assert (images.mean, images.std, images.bgr_to_rgb) == (mean, std, True)
    model = swap_backbone(old, checkpoint='own.pth', backbone=name).config.model
    assert model.backbone.init_cfg.checkpoint == 'own.pth'
    assert 'has its own: leave arch out' in refusal(swap_backbone, old, 'tiny', backbone=name, error=ValueError)


def test_a_detector_refuses_patches_that_are_not_the_stride_of_its_anchors() -> None:
    assert 'but CPVT returns only maps with stride 14' in refusal(
        swap_backbone, vitdet(), backbone='dinov2-small', error=CannotSwap)
    assert swap_backbone(vitdet(), backbone='dinov3-small').config.model.neck.in_channels == 384


def test_a_config_of_cpvt_gets_another_arch() -> None:
    """Blocks after the last that it returns are not built; they count all the same."""
    own = dict(type='cpvt_mm.CPVT', arch='tiny', out_indices=(2, 5),
               position_encoding=dict(type='RotaryPE'))
    cfg = segmentor(own, None, dict(type='FCNHead', in_channels=192, in_index=1, **SMALL))
    model = swap_backbone(cfg, 'small', backbone='CPVT').config.model
    assert model.backbone == {**own, 'arch': 'small'} and model.decode_head.in_channels == 384
