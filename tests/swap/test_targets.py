"""Maps that a backbone returns: how they are found, which of a new one replace them, and who takes their channels."""
import copy
import itertools
import re

import pytest
from torch import Tensor, nn

from cpvt_mm.registry import MODELS
from cpvt_mm.swap.channels import adapt_heads, adapt_neck
from cpvt_mm.swap.map_choice import blocks_by_depth, choose_blocks, choose_stages
from cpvt_mm.swap.probing import CannotBuild, CannotRun, CannotSwap, Maps, probe_backbone
from openmmlab_tools.registry import in_scope
from tests.helpers import refusal

ALL = (0, 1, 2, 3)


def stages(strides: tuple[int, ...], out_indices: tuple[int, ...] | None, scope: str) -> tuple[int, ...]:
    """Chooses stages of a pyramid."""
    old = Maps((1,) * len(strides), strides, out_indices)
    return choose_stages('X', old, scope == 'mmseg')


def blocks(strides: tuple[int, ...], out_indices: tuple[int, ...] | None, num_blocks: int | None) -> tuple[int, ...]:
    """Chooses blocks of the tiny CPVT, of 12."""
    old = Maps((8,) * len(strides), strides, out_indices, num_blocks)
    return choose_blocks('X', old, False, 16, 12)


@pytest.mark.parametrize(('strides', 'out_indices', 'in_mmdet', 'in_mmseg'), [
    ((4, 8, 16, 32), (0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)), ((4, 8, 16, 32), None, (0, 1, 2, 3), (0, 1, 2, 3)),
    ((8, 16, 32), (3, 4, 5), (1, 2, 3), (1, 2, 3)),  # numbers of Darknet's own
    ((32,), (3,), (3,), (3,)),
    ((16,), (3,), (2,), (3,)),  # dilated: anchors need the stride, segmentation the last stage
    ((4, 8, 8, 8), (0, 1, 2, 3), None, (0, 1, 2, 3)),
    ((4, 8, 8, 8), (1, 2, 4, 6), None, (0, 1, 2, 3)),  # numbers of MobileNet's own
    ((8, 8), (2, 3), None, (2, 3)), ((16,), (11,), (2,), (2,)),  # a plain transformer
    *((strides, None, None, None) for strides in ((4, 4), (16,) * 4, (8, 4), (64,)))])  # no pyramid
def test_choice_of_stages(strides: tuple, out_indices: tuple | None, in_mmdet: tuple | None, in_mmseg: tuple | None
                          ) -> None:
    for scope, expected in (('mmdet', in_mmdet), ('mmseg', in_mmseg)):
        if expected:
            assert stages(strides, out_indices, scope) == expected
        else:
            told = refusal(stages, strides, out_indices, scope, error=CannotSwap)
            assert 'backbone X returns maps with strides' in told


@pytest.mark.parametrize(('indices', 'num_blocks', 'new_num_blocks', 'expected'), [
    ((5, 11, 17, 23), 24, 12, (2, 5, 8, 11)), ((5, 11), 12, 24, (11, 23)),
    ((9, 14, 19, 23), 24, 12, (4, 7, 9, 11)),  # after 15 of 24 blocks: 7.5 of 12
    ((20, 21, 22, 23), 24, 12, (8, 9, 10, 11)),  # two would be 10, two 11
    ((0, 1), 24, 12, (0, 1))])  # both would be 0
def test_blocks_by_depth(indices: tuple[int, ...], num_blocks: int, new_num_blocks: int, expected: tuple) -> None:
    assert blocks_by_depth(indices, num_blocks, new_num_blocks) == expected


def test_blocks_are_distinct_and_the_last_replaces_the_last() -> None:
    for num_blocks, new in itertools.product((1, 2, 3, 5, 12, 24, 40), (1, 2, 3, 5, 12)):
        for first in range(max(0, num_blocks - new), num_blocks):
            actual = blocks_by_depth(range(first, num_blocks), num_blocks, new)
            assert len(actual) == num_blocks - first and list(actual) == sorted(set(actual))
            assert actual[0] >= 0 and actual[-1] == new - 1
    assert blocks((16,), (2,), None) == (11,)  # a stage, and no list of blocks
    assert blocks((16,), (2,), 6) == (5,)


@pytest.mark.parametrize(('strides', 'out_indices', 'num_blocks', 'reason'), [
    ((4, 8, 16, 32), ALL, None, 'maps with strides 4, 8, 16, 32, but CPVT returns only maps with stride 16: use'),
    ((14, 14), (2, 5), 6, r'maps with strides 14, 14, but CPVT returns only maps with stride 16\.$'),
    ((16, 16), None, 6, '2 maps, but does not state which blocks they come from'),
    ((16, 16), (2, 5), 4, '2 maps, but does not state which blocks they come from'),
    ((16,) * 13, tuple(range(13)), 24, '13 maps, but this arch of CPVT has 12 blocks')])
def test_maps_it_cannot_replace(strides: tuple, out_indices: tuple | None, num_blocks: int | None, reason: str) -> None:
    told = refusal(blocks, strides, out_indices, num_blocks, error=CannotSwap)
    assert re.search(f'its backbone X returns {reason}', told)


ODD = dict(type='cpvt_mm.OddBackbone')


@MODELS.register_module(force=True)
class OddBackbone(nn.Module):
    """Returns what its argument says."""

    def __init__(self, returns: str) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, x: Tensor) -> object:
        if self.returns == 'error':
            raise RuntimeError('only\nlandscapes')
        if self.returns == 'more':
            return (x, x) if self.training else (x,)
        return {'dict': dict(x=x), 'oblong': (x[..., :64],), 'map': x, 'vector': (x[..., 0, 0],)}[self.returns]


def test_maps_of_a_backbone_with_and_without_numbered_stages() -> None:
    resnet = dict(type='ResNet', depth=18, out_indices=(1, 3), strides=(1, 2, 2, 1),
                  init_cfg=dict(type='Pretrained', checkpoint='missing.pth'))
    with in_scope('mmdet'):
        assert probe_backbone(resnet) == Maps((128, 512), (8, 16), (1, 3))
    assert probe_backbone(dict(ODD, returns='map')) == Maps((3,), (1,))
    assert probe_backbone(dict(ODD, returns='vector')) == Maps((3,), (320,))


@pytest.mark.parametrize('norm', ['SyncBN', 'MMSyncBN'])
def test_norms_of_several_processes_are_probed_in_one(norm: str) -> None:
    with in_scope('mmdet'):
        assert probe_backbone(dict(type='ResNet', depth=18, norm_cfg=dict(type=norm))).channels == (64, 128, 256, 512)


@pytest.mark.parametrize(('backbone', 'error', 'reason'), [
    (dict(type='ResNet', depth=7), CannotBuild, r'ResNet cannot be built here \(KeyError: .invalid depth 7'),
    (dict(ODD, returns='error'), CannotRun, r'does not run on an image of 320 x 320 \(RuntimeError: only\), so'),
    (dict(ODD, returns='dict'), CannotSwap, 'does not return a sequence of square feature maps'),
    (dict(ODD, returns='more'), CannotSwap, 'OddBackbone returns different maps in training and in evaluation'),
    (dict(ODD, returns='oblong'), CannotSwap, 'does not return a sequence of square feature maps')])
def test_what_returns_no_maps_is_a_sentence(backbone: dict, error: type[CannotSwap], reason: str) -> None:
    with in_scope('mmdet'):
        assert re.search(f'its backbone .*{reason}', refusal(probe_backbone, backbone, error=error))


OLD, NEW = (256, 512, 1024, 2048), (64, 128, 320, 512)


@pytest.mark.parametrize(('old', 'new', 'neck', 'becomes'), [
    (OLD, NEW, dict(in_channels=[256, 512, 1024, 2048]), dict(in_channels=[64, 128, 320, 512])),
    (OLD, NEW, dict(in_channels=[2048, 1024, 512, 256]), dict(in_channels=[512, 320, 128, 64])),
    (OLD, NEW, dict(in_channels=2048), dict(in_channels=512)), (OLD, NEW, dict(), dict()),  # such as pooling
    ((768,) * 4, (384,) * 4, dict(embed_dim=768), dict(embed_dim=384)),  # Feature2Pyramid: one number for all maps
    # A neck that hands maps on has them among its outputs.
    ((512, 1024), (128, 320), dict(in_channels=(512, 1024), out_channels=(512, 1024, 512, 256)),
     dict(in_channels=(128, 320), out_channels=(128, 320, 512, 256)))])
def test_necks_take_the_new_channels(old: tuple, new: tuple, neck: dict, becomes: dict) -> None:
    config = dict(type='FPN', num_outs=5, **neck)
    adapt_neck(config, old, new)
    assert config == dict(type='FPN', num_outs=5, **becomes)


@pytest.mark.parametrize(('head', 'becomes'), [
    (dict(in_channels=2048, channels=512), dict(in_channels=512, channels=512)),
    (dict(in_channels=1024, in_index=2), dict(in_channels=320, in_index=2)),
    (dict(in_channels=1024, in_index=-2), dict(in_channels=320, in_index=-2)),
    (dict(in_channels=[512, 2048], in_index=(1, 3)), dict(in_channels=[128, 512], in_index=(1, 3))),
    (dict(in_channels=[256, 512, 1024, 2048]), dict(in_channels=[64, 128, 320, 512])),
    (dict(in_channels=2048, c1_in_channels=256), dict(in_channels=512, c1_in_channels=64)),
    (dict(in_channels=2048, channels=2048, num_convs=0), dict(in_channels=512, channels=512, num_convs=0)),
    (dict(in_channels=2048, channels=2048, num_convs=1), dict(in_channels=512, channels=2048, num_convs=1)),
    # A nested head is adapted by its index alone: 512 is a width of the K-Net's own, and of ResNet's second stage.
    (dict(kernel_generate_head=dict(in_channels=2048, in_index=3), kernel_update_head=[dict(in_channels=512)]),
     dict(kernel_generate_head=dict(in_channels=512, in_index=3), kernel_update_head=[dict(in_channels=512)]))])
def test_heads_of_mmseg_take_the_channels_of_their_index(head: dict, becomes: dict) -> None:
    for model, changed in ((dict(decode_head=copy.deepcopy(head)), dict(decode_head=becomes)),
                           (dict(auxiliary_head=[copy.deepcopy(head)]), dict(auxiliary_head=[becomes]))):
        adapt_heads(model, OLD, NEW)
        assert model == changed
    for wrong in (dict(in_channels=512), dict(in_channels=2048, in_index=4)):
        with pytest.raises(CannotSwap, match=r'its decode_head has in_channels .* for in_index .*, but receives 256, '):
            adapt_heads(dict(decode_head=wrong), OLD, NEW)
