import pytest
import torch
from mmengine.config import Config
from torch import Tensor, nn

from cpvt_lab.padding import build_backbone, draw_image, measure
from cpvt_mm.errors import UserError
from tests.conftest import NARROW

IMAGE, NEIGHBOUR = (50, 70), (96, 128)


class Brightness(nn.Module):
    """Two maps: each cell's own pixels, and these with the mean of the whole batch's image."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cells = nn.functional.avg_pool2d(x, 4)
        return cells, cells + x.mean(dim=(2, 3), keepdim=True)


def test_a_backbone_that_sees_the_padding_and_one_that_does_not() -> None:
    image, neighbour = draw_image(IMAGE, 0), draw_image(NEIGHBOUR, 1)
    own, global_ = measure(Brightness(), image, neighbour)
    assert own.error == own.max_abs == 0 and own.cells.shape == (16, 24)
    # The image fills 64 x 96 pixels when it is alone, and 96 x 128 in the batch.
    shift = image.sum(dim=(0, 2, 3)) * (1 / (64 * 96) - 1 / (96 * 128))
    assert global_.max_abs == pytest.approx(shift.abs().max().item(), rel=1e-3)
    variation = Brightness()(nn.functional.pad(image, (0, 26, 0, 14)))[0].var(dim=(2, 3), correction=0).mean().sqrt()
    assert global_.error == pytest.approx((shift.square().mean().sqrt() / variation).item(), rel=1e-3)
    torch.testing.assert_close(global_.cells, torch.full((16, 24), global_.error), rtol=1e-3, atol=0)


def test_ours_with_the_option_and_without() -> None:
    cfg = Config(dict(model=dict(backbone=dict(type='cpvt_mm.PyramidCPVT', arch=NARROW))))
    images = draw_image(IMAGE, 0), draw_image(NEIGHBOUR, 1)
    exact, plain = (build_backbone(cfg, padding=padding) for padding in ('exact', None))
    assert max(difference.max_abs for difference in measure(exact, *images)) < 1e-4
    assert min(difference.error for difference in measure(plain, *images)) > 0.1
    assert all(map(torch.equal, exact.parameters(), plain.parameters()))


def test_a_stock_backbone_needs_none_of_its_pretrained_weights() -> None:
    backbone = dict(type='mmdet.ResNet', depth=18, init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet18'))
    model = build_backbone(Config(dict(model=dict(backbone=backbone))))
    assert not model.training and 'Pretrained' not in str(model.init_cfg)


def test_what_cannot_be_built_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r'the cpvt_mm.PyramidCPVT of config .* cannot be built: '):
        build_backbone(Config(dict(model=dict(backbone=dict(type='cpvt_mm.PyramidCPVT', arch='huge')))))
    with pytest.raises(UserError, match=r'has no model\.backbone'):
        build_backbone(Config(dict(model=dict())))
