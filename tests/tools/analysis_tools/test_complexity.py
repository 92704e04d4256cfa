import torch
import torch.nn.functional as F
from torch import nn

from cpvt_lab.complexity import count_flops, measure
from cpvt_mm import PyramidCPVT
from tests.conftest import NARROW


def test_counts_two_operations_for_a_multiply_add() -> None:
    result = measure(nn.Linear(5, 7), torch.zeros(3, 5))
    assert (result.params, result.flops) == (5 * 7 + 7, 2 * 3 * 5 * 7)


def test_counts_the_backbone_with_its_attention() -> None:
    arch = {key: list(values) for key, values in NARROW.items()}
    height = width = 64
    expected, channels = 0, 3
    for i, dims in enumerate(arch['embed_dims']):
        patch = 4 if i == 0 else 2
        height, width = height // patch, width // patch
        tokens, sr, ratio = height * width, arch['sr_ratios'][i], arch['mlp_ratios'][i]
        keys = tokens // sr**2
        embed = tokens * dims * channels * patch**2
        block = tokens * dims * dims * 2 + keys * dims * 2 * dims  # q and the output; k and v
        block += keys * dims * dims * sr**2 if sr > 1 else 0
        block += 2 * tokens * keys * dims  # attention: logits and weighted values
        block += 2 * tokens * dims * ratio * dims
        expected += 2 * (embed + arch['depths'][i] * block + tokens * dims * 9)  # 9: the PEG
        channels = dims
    assert measure(PyramidCPVT(NARROW), torch.zeros(1, 3, 64, 64)).flops == expected


def test_counts_the_groups_of_a_convolution_backwards() -> None:
    conv, image = nn.Conv2d(8, 8, 3, padding=1, groups=8), torch.zeros(2, 8, 5, 7, requires_grad=True)
    forward = 2 * 2 * 5 * 7 * 8 * 9
    assert count_flops(lambda: conv(image)) == forward
    assert count_flops(lambda: conv(image).sum().backward()) == 3 * forward
    image.requires_grad_(False)
    assert count_flops(lambda: conv(image).sum().backward()) == 2 * forward


def test_counts_attention_backwards() -> None:
    q, k, v = (torch.randn(2, 3, tokens, 8, requires_grad=True) for tokens in (10, 6, 6))
    forward = 2 * 2 * 2 * 3 * 10 * 6 * 8
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v)) == forward
    assert count_flops(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward()) == 3 * forward
