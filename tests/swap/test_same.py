"""Backbones that stay the same: what is recognised, and that models go on with their weights and outputs."""
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import load_checkpoint

from cpvt_mm import PyramidCPVT
from cpvt_mm.swap import CannotSwap, read_config, swap_backbone, write_config
from cpvt_mm.swap.same import same_backbone
from openmmlab_tools.checkpoints.fitting import check_load_from, load_weights, renamed
from openmmlab_tools.checkpoints.reading import open_checkpoint
from openmmlab_tools.registry import in_scope
from tests.helpers import build_model, refusal

SIZES = dict(embed_dims=8, num_layers=[1, 2, 1, 1], num_heads=[1, 2, 5, 8])
NAMES = {'mmdet.PyramidVisionTransformer': SIZES, 'mmdet.PyramidVisionTransformerV2': SIZES,
         'mmseg.MixVisionTransformer': {**SIZES, 'drop_path_rate': 0.3},
         'mmseg.PCPVT': dict(embed_dims=[8, 16, 40, 64], depths=[1, 2, 1, 1], num_heads=[1, 2, 5, 8],
                             patch_sizes=[4, 2, 2, 2], strides=[4, 2, 2, 2], mlp_ratios=[4, 4, 4, 4],
                             out_indices=(0, 1, 2, 3), qkv_bias=True, norm_after_stage=False, sr_ratios=[8, 4, 2, 1],
                             norm_cfg=dict(type='LN'))}


@pytest.mark.parametrize('name', NAMES)
def test_arguments_are_found(name: str) -> None:
    scope = name.partition('.')[0]
    with in_scope(scope):
        config = same_backbone(dict(type=name, out_indices=(1, 3), **{
            key: value for key, value in NAMES[name].items() if key != 'out_indices'}))
    assert config.pop('type') == 'cpvt_mm.PyramidCPVT' and config['arch']['embed_dims'] == [8, 16, 40, 64]
    model = PyramidCPVT(**config)
    assert model.out_indices == (1, 3) and model.depths == (1, 2, 1, 1)
    assert config.get('drop_path_rate') == {'mmseg.MixVisionTransformer': 0.3, 'mmseg.PCPVT': None}.get(name, 0.1)


@pytest.mark.parametrize(('name', 'more', 'words'), [
    ('mmseg.MixVisionTransformer', dict(qkv_bias=False), 'missing (stages.0.blocks.0.attn.q.bias, '),
    ('mmseg.MixVisionTransformer', dict(act_cfg=dict(type='ReLU')), 'gives other maps than PyramidCPVT with the same'),
    ('mmdet.PyramidVisionTransformer', dict(num_stages=3, num_layers=[1, 1, 1], num_heads=[1, 2, 5],
                                            patch_sizes=[4, 2, 2], strides=[4, 2, 2], paddings=[0, 0, 0],
                                            sr_ratios=[8, 4, 2], mlp_ratios=[8, 8, 4], out_indices=(0, 1, 2)),
     'parts that PyramidCPVT does not have')])
def test_what_differs_is_refused(name: str, more: dict[str, Any], words: str) -> None:
    with in_scope(name.partition('.')[0]):
        assert words in refusal(same_backbone, dict(type=name, **{**SIZES, **more}), error=CannotSwap)


def segformer(**backbone: Any) -> Config:
    return Config(dict(default_scope='mmseg', load_from='whole.pth', model=dict(
        type='EncoderDecoder', pretrained=None,
        data_preprocessor=dict(type='SegDataPreProcessor', mean=[1.], std=[2.]),
        backbone=dict(type='MixVisionTransformer', **SIZES, **backbone),
        decode_head=dict(type='SegformerHead', in_channels=[8, 16, 40, 64], in_index=[0, 1, 2, 3], channels=8,
                         num_classes=3, norm_cfg=dict(type='BN'), align_corners=False),
        train_cfg={}, test_cfg=dict(mode='whole')), optim_wrapper=dict(paramwise_cfg=dict(custom_keys={
            'pos_block': dict(decay_mult=0.), 'norm': dict(decay_mult=0.), 'head': dict(lr_mult=10.)}))))


@torch.no_grad()
def test_a_checkpoint_of_the_whole_model_goes_on_working(tmp_path: Path) -> None:
    old = segformer()
    new = swap_backbone(old).config
    assert new.load_from == 'whole.pth' and new.model.data_preprocessor == old.model.data_preprocessor
    assert list(new.optim_wrapper.paramwise_cfg.custom_keys) == ['norm', 'head']
    reference = build_model(old).eval()
    for parameter in reference.parameters():
        parameter.normal_(std=0.1)
    torch.save(dict(state_dict=reference.state_dict()), tmp_path / 'whole.pth')
    ours = build_model(new).eval()
    load_weights(ours, tmp_path / 'whole.pth')
    image = torch.randn(1, 3, 64, 96)
    expected = reference(image, mode='tensor')
    torch.testing.assert_close(ours(image, mode='tensor'), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_it_is_the_default_unless_told_otherwise() -> None:
    checkpoint = dict(init_cfg=dict(type='Pretrained', checkpoint='mit.pth'))
    assert swap_backbone(segformer(**checkpoint)).config.model.backbone.init_cfg == checkpoint['init_cfg']
    model = segformer(pretrained='mit.pth')
    assert swap_backbone(model).config.model.backbone.init_cfg.checkpoint == 'mit.pth'
    model.model.pretrained, model.model.backbone.pretrained = 'segmentor.pth', None
    swapped = swap_backbone(model).config.model
    assert swapped.backbone.init_cfg.checkpoint == 'segmentor.pth' and swapped.pretrained is None
    assert swap_backbone(model, 'nano').config.model.backbone == dict(type='cpvt_mm.PyramidCPVT', arch='nano')
    b0 = swap_backbone(model, backbone='pvtv2-b0').config.model
    assert b0.backbone.init_cfg.checkpoint == 'cpvt_mm://pvtv2-b0' and b0.decode_head.in_channels == [32, 64, 160, 256]
    for options, words in ((dict(arch='nano'), "arch is 'nano', but 'same' has its own: leave arch"),
                           (dict(checkpoint='a.pth'), "checkpoint is 'a.pth', but 'same' keeps its weights")):
        assert words in refusal(swap_backbone, model, backbone='same', error=ValueError, **options)
    model.model.backbone = dict(type='ResNet', depth=18)
    assert 'its backbone ResNet cannot stay the same, because only PCPVT' in refusal(
        swap_backbone, model, backbone='same', error=CannotSwap)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['mmdet::pvt/retinanet_pvtv2-b0_fpn_1x_coco.py',
                                  'mmdet::pvt/retinanet_pvt-t_fpn_1x_coco.py'])
def test_a_stock_config_names_its_arch(name: str, tmp_path: Path) -> None:
    old = read_config(name)
    new = swap_backbone(old).config
    assert new.model.backbone.arch == dict(name='pvtv2-b0' if 'v2' in name else 'pvt-tiny', embed_norm_eps=1e-6)
    assert new.model.backbone.init_cfg.checkpoint == old.model.backbone.init_cfg.checkpoint
    write_config(old, new, name, tmp_path / 'new.py')
    text = (tmp_path / 'new.py').read_text()
    assert 'neck' not in text and 'optim_wrapper' not in text


def test_what_cannot_stay_the_same_becomes_a_pyramid_cpvt_and_says_so(log: list[tuple[str, str]]) -> None:
    swapped = swap_backbone(segformer(qkv_bias=False))
    assert swapped.config.model.backbone.arch == 'small' and not swapped.is_same
    assert any('the backbone becomes a PyramidCPVT, since its backbone MixVisionTransformer' in text for _, text in log)
    listed = segformer(init_cfg=[dict(type='Pretrained', checkpoint='a.pth', prefix='backbone')])
    assert swap_backbone(listed).config.model.backbone.init_cfg == dict(
        type='Pretrained', checkpoint='a.pth', prefix='backbone')


def test_a_backbone_in_a_part_of_the_model_can_stay_the_same() -> None:
    segmentor = segformer()
    segmentor.model = dict(type='Distiller', student=segmentor.model)
    swapped = swap_backbone(segmentor)
    assert swapped.is_same and swapped.config.model.student.backbone.type == 'cpvt_mm.PyramidCPVT'
    assert not swap_backbone(segmentor, 'nano').is_same


def test_a_load_from_with_their_names_is_reported_as_loaded(tmp_path: Path) -> None:
    reference, ours = build_model(segformer()), build_model(swap_backbone(segformer()).config)
    del reference.decode_head
    torch.save(dict(state_dict=reference.state_dict()), tmp_path / 'backbone.pth')
    path = tmp_path / 'backbone.pth'
    told = check_load_from(ours, open_checkpoint(path))
    load_checkpoint(ours, str(path))
    number = len(ours.backbone.state_dict())
    assert f'fills {number} of' in told and 'backbone.' not in told.partition('Not loaded are')[2]
    for name, tensor in renamed(ours.backbone, reference.backbone.state_dict()).items():
        assert torch.equal(tensor, ours.backbone.state_dict()[name])
