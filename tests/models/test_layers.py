from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.encodings import PositionEncodings, StageSpec, build_position_encodings
from cpvt_mm.models.layers import Attention, Block, BlockSpec, recomputed
from cpvt_mm.models.pvt_parts import ConvMLP, LayerScale, PoolReduction, SwiGLU, average_pool
from cpvt_mm.tokens.grid import Grid

pytestmark = pytest.mark.usefixtures('float64')

NOTHING = PositionEncodings()


def apply(layer: nn.Module, x: Tensor, *args: object) -> Tensor:
    """A layer on the tokens of a grid `(B, H, W, C)`."""
    return layer(x.flatten(1, 2), Grid(*x.shape[1:3]), *args).view_as(x)


@pytest.mark.parametrize('sr_ratio', [1, 2])
def test_attention_is_softmax_attention_over_the_reduced_grid(sr_ratio: int) -> None:
    attention = Attention(0, BlockSpec(12, 3, 4, sr_ratio))
    x = torch.randn(2, 5, 7, 12)
    keys = x.flatten(1, 2) if attention.sr is None else attention.sr(x.flatten(1, 2), Grid(5, 7))[0]
    assert keys.shape[1] == -(-5 // sr_ratio) * -(-7 // sr_ratio)
    q = attention.q(x).flatten(1, 2)
    k, v = attention.kv(keys).chunk(2, -1)
    heads = []
    for h in range(3):
        part = slice(4 * h, 4 * (h + 1))
        weights = (q[..., part] @ k[..., part].mT / 4**0.5).softmax(-1)
        heads.append(weights @ v[..., part])
    expected = attention.proj(torch.cat(heads, -1)).reshape(x.shape)
    *_, key_grid = attention.project(x.flatten(1, 2), Grid(5, 7), NOTHING)
    assert key_grid == Grid(-(-5 // sr_ratio), -(-7 // sr_ratio), sr_ratio, sr_ratio)
    torch.testing.assert_close(apply(attention, x, NOTHING), expected)


def test_swiglu_has_two_thirds_of_the_width_and_a_gate() -> None:
    mlp = SwiGLU(BlockSpec(12, 3, 4))  # 48 * 2 / 3 = 32
    assert mlp.fc1.weight.shape == (64, 12) and mlp.fc2.weight.shape == (12, 32)
    assert SwiGLU(BlockSpec(1536, 24, 4)).fc2.weight.shape == (1536, 4096)
    x = torch.randn(2, 5, 12)
    gate, hidden = mlp.fc1(x)[..., :32], mlp.fc1(x)[..., 32:]
    torch.testing.assert_close(mlp(x, Grid(1, 5)), mlp.fc2(gate * gate.sigmoid() * hidden))


@pytest.mark.parametrize('scale', [None, 0.5])
def test_a_block_is_pre_norm_with_two_residual_branches_which_layer_scale_ends(scale: float | None) -> None:
    make_scale = partial(LayerScale, 8, scale) if scale else None
    block, x, grid = Block(0, BlockSpec(8, 2, 4, make_scale=make_scale)), torch.randn(2, 15, 8), Grid(3, 5)
    first, second = torch.full((8,), scale or 1.), torch.ones(8)
    if scale:
        assert torch.equal(block.ls1.gamma, first)
        second = block.ls2.gamma.data.mul_(torch.arange(8))
    y = x + first * block.attn(block.norm1(x), grid, NOTHING)
    expected = y + second * block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(y))))
    torch.testing.assert_close(block(x, grid, NOTHING), expected)
    assert block.mlp.fc1.out_features == 32


def test_pooled_keys_are_means_of_seven_by_seven_parts() -> None:
    pooled, x = PoolReduction(BlockSpec(6, 1, 4)), torch.randn(2, 6, 14, 21)
    means = x.unflatten(3, (7, 3)).unflatten(2, (7, 2)).mean(dim=(3, 5)).flatten(2).mT
    tokens, grid = pooled(x.flatten(2).mT, Grid(14, 21))
    torch.testing.assert_close(tokens, F.gelu(pooled.norm(pooled.proj(means))))
    assert grid == Grid(7, 7, 2, 3)
    attention = Attention(0, BlockSpec(12, 3, 4, 2, make_reduction=PoolReduction))
    assert attention.project(torch.randn(1, 50, 12), Grid(10, 5), NOTHING)[-1] == Grid(7, 7, 10 / 7, 5 / 7)


@pytest.mark.parametrize('shape', [(1, 1), (7, 13), (30, 5)])
@pytest.mark.parametrize('size', [(1, 1), (7, 3)])
def test_products_with_matrices_pool_as_torch_does(shape: tuple[int, int], size: tuple[int, int]) -> None:
    x = torch.randn(2, 4, *shape)
    pooled = average_pool(x.permute(0, 2, 3, 1), size).permute(0, 3, 1, 2)
    torch.testing.assert_close(pooled, F.adaptive_avg_pool2d(x, size))


def test_the_convolution_of_an_mlp_lies_in_front_of_gelu() -> None:
    block, x = Block(0, BlockSpec(8, 2, 4, make_mlp=ConvMLP)), torch.randn(2, 3, 5, 8)
    hidden = F.pad(block.mlp.fc1(x), (0, 0, 1, 1, 1, 1))
    kernel = block.mlp.conv.weight[:, 0]
    convolved = block.mlp.conv.bias + sum(
        kernel[:, row, column] * hidden[:, row:row + 3, column:column + 5] for row in range(3) for column in range(3))
    torch.testing.assert_close(apply(block.mlp, x), block.mlp.fc2(F.gelu(convolved)))


def dropped(x: Tensor, rate: float, training: bool = True) -> Tensor:
    return Block(0, BlockSpec(3, 1, 4), rate).train(training).branch(x, None, Grid(1, 2))


def test_drop_path_keeps_each_sample_with_its_probability_and_keeps_the_mean() -> None:
    x = torch.ones(4000, 2, 3)
    kept = (out := dropped(x, 0.25))[:, 0, 0] > 0
    torch.testing.assert_close(out, (kept / 0.75)[:, None, None].expand_as(out), check_dtype=False)
    assert kept.float().mean() == pytest.approx(0.75, abs=0.03)
    assert dropped(x, 0.5, training=False) is x and dropped(x, 0.) is x


@pytest.mark.parametrize('encoding', [None, dict(type='RotaryPE', form='dinov3', shift=1., jitter=2., rescale=2.)])
def test_whole_blocks_are_recomputed_with_the_same_draws(encoding: dict | None) -> None:
    block = Block(0, BlockSpec(8, 2, 4), 0.5).train()
    encodings = build_position_encodings(encoding, StageSpec(8, 2, 1, (3, 5)))
    x = torch.randn(4, 15, 8, requires_grad=True)
    gradients = []
    for recompute in (False, True):
        torch.manual_seed(0)
        out = recomputed(block, x, Grid(3, 5), encodings) if recompute else block(x, Grid(3, 5), encodings)
        gradients.append(torch.autograd.grad(out.square().sum(), [x, *block.parameters()]))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
