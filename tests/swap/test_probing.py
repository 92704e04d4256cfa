import pytest
from torch import Tensor, nn

from cpvt_mm.registry import MODELS
from cpvt_mm.swap.probing import CannotBuild, CannotRun, CannotSwap, Maps, ProbedBackbone, probe_backbone, probe_necks

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


def test_maps_of_a_backbone() -> None:
    found = probe_backbone(dict(type='ResNet', depth=18, out_indices=(1, 3), strides=(1, 2, 2, 1),
                                init_cfg=dict(type='Pretrained', checkpoint='missing.pth')), 'mmdet')
    assert found == ProbedBackbone(Maps((128, 512), (8, 16)), (1, 3))


def test_backbone_without_numbered_stages() -> None:
    assert probe_backbone(dict(ODD, returns='map'), None) == ProbedBackbone(Maps((3,), (1,)), None)
    assert probe_backbone(dict(ODD, returns='vector'), None).maps == Maps((3,), (320,))


@pytest.mark.slow
def test_backbone_for_one_size_of_image() -> None:
    backbone = dict(type='mmseg.BEiT', img_size=(64, 64), embed_dims=12, num_layers=2, num_heads=2, out_indices=(0, 1),
                    qv_bias=True)
    assert probe_backbone(backbone, 'mmseg') == ProbedBackbone(Maps((12, 12), (16, 16)), (0, 1), num_blocks=2)


def test_maps_of_necks_that_follow_one_another() -> None:
    fpn = dict(type='FPN', in_channels=[8, 16, 24], out_channels=12, num_outs=4)
    bfp = dict(type='BFP', in_channels=12, num_levels=4, refine_level=2)
    assert probe_necks([fpn, bfp], Maps((8, 16, 24), (8, 16, 32)), 'mmdet') == Maps((12,) * 4, (8, 16, 32, 64))


@pytest.mark.parametrize(('backbone', 'error', 'reason'), [
    (dict(type='ResNet', depth=7), CannotBuild,
     r'its backbone ResNet cannot be built here \(KeyError: .invalid depth 7'),
    (dict(ODD, returns='error'), CannotRun,
     r'cpvt_mm.OddBackbone does not run on an image of 320 x 320 \(RuntimeError: only\), so'),
    (dict(ODD, returns='dict'), CannotSwap, 'does not return a sequence of square feature maps'),
    (dict(ODD, returns='more'), CannotSwap, 'OddBackbone returns different maps in training and in evaluation'),
    (dict(ODD, returns='oblong'), CannotSwap, 'does not return a sequence of square feature maps'),
])
def test_what_returns_no_maps_is_a_sentence(backbone: dict, error: type[CannotSwap], reason: str) -> None:
    with pytest.raises(error, match=reason) as caught:
        probe_backbone(backbone, 'mmdet')
    assert '\n' not in str(caught.value)
