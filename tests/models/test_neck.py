import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm import CPVT, SimpleFeaturePyramid
from cpvt_mm.tokens.grid import Size


@pytest.mark.parametrize('size', [(1, 1), (8, 8), (13, 2)])
@pytest.mark.parametrize('in_stride, strides', [
    *((stride, (4, 8, 16, 32)) for stride in (4, 16, 32)), (16, (2, 64))])
def test_each_stride_has_its_share_of_cells_rounded_up(in_stride: int, strides: tuple[int, ...], size: Size) -> None:
    outputs = SimpleFeaturePyramid(32, in_stride, strides=strides)([torch.randn(2, 32, *size)])
    expected = [(2, 256, *(-(-side * in_stride // stride) for side in size)) for stride in strides]
    assert [tuple(output.shape) for output in outputs] == expected
    assert all(output.is_contiguous() and output.isfinite().all() for output in outputs)


def test_levels_are_those_of_the_paper() -> None:
    """Against the paper's words, written with functions: one transposed convolution, or two with a norm between."""
    neck, x = SimpleFeaturePyramid(16, out_channels=8), torch.randn(2, 16, 5, 7)
    for parameter in neck.parameters():
        nn.init.normal_(parameter, std=0.5)  # other values than ones and zeros in norms

    def norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x.movedim(1, -1), weight.shape, weight, bias, eps=1e-6).movedim(-1, 1)

    for output, level, stride in zip(neck([x]), neck.levels, (4, 8, 16, 32), strict=True):
        parameters = list(level.parameters())
        scaled = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 2) if stride == 32 else x
        if stride in (4, 8):
            scaled = F.conv_transpose2d(scaled, parameters.pop(0), parameters.pop(0), stride=2)
        if stride == 4:
            scaled = F.gelu(norm(scaled, parameters.pop(0), parameters.pop(0)))
            scaled = F.conv_transpose2d(scaled, parameters.pop(0), parameters.pop(0), stride=2)
        conv1, weight1, bias1, conv2, weight2, bias2 = parameters
        expected = norm(F.conv2d(scaled, conv1), weight1, bias1)
        expected = norm(F.conv2d(expected, conv2, padding=1), weight2, bias2)
        torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-4)


def test_only_the_last_map_is_read_and_further_outputs_are_the_last_subsampled() -> None:
    neck, last = SimpleFeaturePyramid(16, out_channels=8, num_outs=6), torch.randn(1, 16, 11, 13)
    outputs = neck((torch.randn(1, 16, 4, 4), last))
    assert all(map(torch.equal, outputs, neck([last])))
    assert all(torch.equal(outputs[i + 1], outputs[i][..., ::2, ::2]) for i in (3, 4))


def test_behind_the_backbone_every_parameter_gets_a_gradient() -> None:
    backbone = CPVT(dict(embed_dims=48, depth=2, num_heads=3), cls_token=False)
    model = nn.Sequential(backbone, SimpleFeaturePyramid(48, out_channels=24, num_outs=5))
    outputs = model(torch.randn(2, 3, 50, 90))
    assert [tuple(output.shape[2:]) for output in outputs] == [(16, 24), (8, 12), (4, 6), (2, 3), (1, 2)]
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
