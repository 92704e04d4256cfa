from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config

from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.deployment import load_part
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from tests.conftest import MASK_RCNN, ROOT, UPERNET
from tests.deployment.conftest import assert_files_are_right

NORM = dict(type='GN', num_groups=4)
PLAIN = dict(
    backbone=dict(type='cpvt_mm.CPVT', arch=dict(embed_dims=24, depth=1, num_heads=3), cls_token=False),
    neck=dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=24, out_channels=8, strides=(8, 32)))
PYRAMID = dict(
    backbone=dict(type='cpvt_mm.PyramidCPVT', out_indices=(0, 1), arch=dict(
        embed_dims=(12, 24, 24, 24), depths=(1,) * 4, num_heads=(3,) * 4, mlp_ratios=(2,) * 4, sr_ratios=(4, 2, 2, 2))),
    neck=dict(type='FPN', in_channels=[12, 24], out_channels=8, num_outs=2))
SEGMENTORS = {
    'UPerHead': dict(
        **PLAIN,
        decode_head=dict(type='UPerHead', in_channels=(8, 8), in_index=(0, 1), pool_scales=(1, 6))),
    'FPNHead': dict(
        **PYRAMID,
        decode_head=dict(type='FPNHead', in_channels=(8, 8), in_index=(0, 1), feature_strides=(4, 8))),
    'SegformerHead': dict(
        **PLAIN,
        decode_head=dict(type='SegformerHead', in_channels=(8, 8), in_index=(0, 1))),
}


def config(head: str, **options: object) -> Config:
    """Makes the config of a small segmentor with such a head."""
    model = SEGMENTORS[head]
    decode_head = dict(channels=8, num_classes=5, norm_cfg=NORM, align_corners=False, **model['decode_head'])
    return Config(dict(default_scope='mmseg', model={
        'type': 'EncoderDecoder', **model, 'decode_head': {**decode_head, **options}, 'test_cfg': dict(mode='whole')}))


@pytest.mark.slow
@pytest.mark.parametrize('head', SEGMENTORS)
def test_segmentors_are_right_at_all_sizes(head: str, tmp_path: Path) -> None:
    segmentor = load_part(config(head), 'segmentor')
    assert_files_are_right(segmentor, tmp_path)


@torch.no_grad()
def test_a_segmentor_gives_the_logits_of_every_pixel() -> None:
    segmentor, image = load_part(config('SegformerHead'), 'segmentor'), torch.randn(2, 3, 33, 50)
    assert not segmentor.training
    logits = segmentor.model(image, mode='tensor')
    assert logits.shape == (2, 5, 6, 8)
    torch.testing.assert_close(segmentor(image), F.interpolate(logits, (33, 50), mode='bilinear'))


@pytest.mark.parametrize('path', [MASK_RCNN, UPERNET, ROOT / 'configs/toy/upernet_cpvt_sfp_toy-shapes.py'])
def test_a_backbone_is_that_of_the_config(path: Path) -> None:
    backbone = load_part(load_config(path), 'backbone')
    assert isinstance(backbone, (CPVT, PyramidCPVT)) and not backbone.training


def test_weights_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    first = load_part(config('SegformerHead'), 'segmentor')
    torch.save(first.model.state_dict(), tmp_path / 'a.pth')
    for part, expected in (('segmentor', first), ('backbone', first.model.backbone)):
        weights = load_part(config('SegformerHead'), part, tmp_path / 'a.pth').state_dict()
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.state_dict().items())
    with pytest.raises(UserError, match='does not fit the EncoderDecoder'):
        load_part(config('FPNHead'), 'segmentor', tmp_path / 'a.pth')


@pytest.mark.parametrize('path, part, words', [
    (MASK_RCNN, 'segmentor', 'is of mmdet, but segmentors are of mmseg'),
    (UPERNET, 'detector', 'is of mmseg, but detectors are of mmdet'),
])
def test_a_model_of_another_library_is_refused(path: Path, part: str, words: str) -> None:
    with pytest.raises(UserError, match=f'{words}: export the backbone alone'):
        load_part(load_config(path), part)


def test_a_head_that_does_not_build_is_an_error() -> None:
    with pytest.raises(UserError, match='cannot be built'):
        load_part(config('SegformerHead', in_index=(0, 1, 2)), 'segmentor')
