import pytest
import torch
import torch.nn.functional as F

from cpvt_mm import CPVT, PEG, PyramidCPVT, StageSpec
from cpvt_mm.models.grid import Grid
from cpvt_mm.models.layers import Attention, Block
from cpvt_mm.models.position_encodings import build_position_encodings
from tests.conftest import NARROW
from tests.encodings import encode
from tests.models.conftest import assert_named

STAGE = StageSpec(embed_dims=6, num_heads=2, depth=3, grid=(4, 4))


def peg(**kwargs: object) -> PEG:
    return PEG(STAGE, **kwargs)


@pytest.mark.parametrize('kernel_size', [1, 3, 7])
def test_adds_a_zero_padded_depthwise_convolution(kernel_size: int) -> None:
    encoding, x = peg(kernel_size=kernel_size), torch.randn(2, 5, 4, 6)
    conv = encoding.convs['0'][0]
    half = kernel_size // 2
    padded = F.pad(x, (0, 0, half, half, half, half))
    expected = x + conv.bias
    for dy in range(kernel_size):
        for dx in range(kernel_size):
            expected = expected + padded[:, dy:dy + 5, dx:dx + 4] * conv.weight[:, 0, dy, dx]
    torch.testing.assert_close(encode(encoding, x, 0), expected)


def test_zeros_around_the_grid_tell_tokens_apart_and_only_there() -> None:
    same_tokens = torch.ones(1, 7, 7, 6)
    encoded = encode(peg(), same_tokens, 0)[0]
    inner = encoded[1:-1, 1:-1]
    torch.testing.assert_close(inner, inner[:1, :1].expand_as(inner))
    assert (encoded[0, 0] - inner[0, 0]).abs().min() > 0


def test_inside_it_moves_with_the_image() -> None:
    encoding, x = peg(), torch.randn(1, 8, 8, 6)
    moved = encode(encoding, x.roll((1, 1), (1, 2)), 0)
    torch.testing.assert_close(moved[:, 2:-1, 2:-1], encode(encoding, x, 0)[:, 1:-2, 1:-2])


def test_follows_the_blocks_of_positions() -> None:
    encoding, x = peg(positions=(0, 2)), torch.randn(1, 4, 4, 6)
    assert list(encoding.convs) == ['0', '2']
    assert encode(encoding, x, 1) is x
    assert not torch.equal(encode(encoding, x, 0), encode(encoding, x, 2))


def test_without_residual_only_the_convolution_is_left() -> None:
    with_residual, without = peg(), peg(residual=False)
    without.load_state_dict(with_residual.state_dict())
    x = torch.randn(1, 4, 4, 6)
    torch.testing.assert_close(encode(without, x, 0) + x, encode(with_residual, x, 0))


def test_bias_can_be_left_out() -> None:
    assert [name for name, _ in peg(bias=False).named_parameters()] == ['convs.0.0.weight']


def test_every_stage_of_the_backbone_has_its_own() -> None:
    model = PyramidCPVT(NARROW, position_encoding=dict(type='PEG', kernel_size=5, positions=(0, 1)))
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if name.endswith('convs.1.0.weight')}
    assert shapes == {
        f'stages.{i}.position_encoding.0.convs.1.0.weight': (width, 1, 5, 5)
        for i, width in enumerate(NARROW['embed_dims'])
    }


@pytest.mark.parametrize('kwargs, error, words', [
    (dict(kernel_size=4), ValueError, ('kernel_size', '4', 'odd')),
    (dict(kernel_size=0), ValueError, ('kernel_size', '0')),
    (dict(positions=()), ValueError, ('positions', 'to 2')),
    (dict(positions=(3,)), ValueError, ('positions', '(3,)', 'to 2')),
    (dict(positions=1), ValueError, ('positions', 'sequence')),
    (dict(positions=(1, 1)), ValueError, ('positions', 'different')),
    (dict(kernal_size=3), TypeError, ('kernal_size',)),
])
def test_bad_arguments_are_named(kwargs: dict, error: type[Exception], words: tuple[str, ...]) -> None:
    assert_named(error, words, peg, **kwargs)


@pytest.mark.parametrize('kwargs, count', [
    (dict(), 1_728),
    (dict(conv_type='separable'), 38_592),
    (dict(conv_type='separable', num_layers=4), 154_368),
    (dict(conv_type='full'), 192 * 192 * 9),
    (dict(positions=(-1, 0, 3), num_layers=2), 6 * 1_728),
    (dict(kernel_size=27, positions=(-1,)), 192 * 27 * 27),
])
def test_parameters_of_the_variants_without_bias(kwargs: dict, count: int) -> None:
    encoding = PEG(StageSpec(embed_dims=192, num_heads=3, depth=12, grid=(14, 14)), bias=False, **kwargs)
    assert sum(p.numel() for p in encoding.parameters()) == count


def test_layers_follow_each_other_each_with_its_residual() -> None:
    encoding, x = peg(num_layers=3), torch.randn(1, 4, 5, 6)
    expected = x
    for conv in encoding.convs['0']:
        expected = expected + conv(expected.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(encode(encoding, x, 0), expected)


def test_separable_mixes_channels_after_neighbours() -> None:
    encoding, x = peg(conv_type='separable'), torch.randn(1, 4, 5, 6)
    depthwise, pointwise = encoding.convs['0'][0]
    mixed = F.conv2d(x.permute(0, 3, 1, 2), depthwise.weight, padding=1, groups=6).permute(0, 2, 3, 1)
    expected = x + mixed @ pointwise.weight[:, :, 0, 0].T + pointwise.bias
    torch.testing.assert_close(encode(encoding, x, 0), expected)


def test_full_is_an_ordinary_convolution() -> None:
    encoding, x = peg(conv_type='full', kernel_size=5), torch.randn(1, 4, 5, 6)
    conv = encoding.convs['0'][0]
    expected = x + F.conv2d(x.permute(0, 3, 1, 2), conv.weight, conv.bias, padding=2).permute(0, 2, 3, 1)
    torch.testing.assert_close(encode(encoding, x, 0), expected)


def test_position_minus_one_is_before_the_first_block() -> None:
    encoding, x = peg(positions=(-1, 1)), torch.randn(1, 4, 5, 6)
    assert not torch.equal(encode(encoding, x, -1), x)
    assert encode(encoding, x, 0) is x
    assert encode(peg(), x, -1) is x


@pytest.mark.parametrize('model', [
    CPVT(dict(embed_dims=16, depth=3, num_heads=2), position_encoding=dict(type='PEG', target='qk')),
    PyramidCPVT(dict(NARROW, depths=(3, 3, 3, 3)), position_encoding=dict(type='PEG', target='qk')),
], ids=['CPVT', 'PyramidCPVT'])
def test_target_qk_feeds_queries_and_keys_of_the_next_block_only(
        model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, project = [], Attention.project
    monkeypatch.setattr(Attention, 'project', lambda self, x, grid, encodings, qk: (
        seen.append((self.index, x, qk)) or project(self, x, grid, encodings, qk)))
    model.eval()(torch.randn(1, 3, 64, 96))
    assert len(seen) == sum(isinstance(module, Block) for module in model.modules())
    for index, x, qk in seen:
        assert (qk is not None) == (index == 1)
        assert qk is None or (qk.shape == x.shape and not torch.equal(qk, x))


@pytest.mark.usefixtures('float64')
def test_target_qk_is_attention_with_values_of_the_plain_tokens() -> None:
    encodings = build_position_encodings(
        dict(type='PEG', target='qk'), StageSpec(embed_dims=6, num_heads=2, depth=3, grid=(4, 4)))
    blocks = [Block(index, embed_dims=6, num_heads=2, mlp_ratio=2, sr_ratio=2) for index in (1, 2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    block, x = blocks[0], torch.randn(1, 4, 6, 6)
    encoded = x + encodings[0].convs['0'][0](x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    attn = block.attn
    q = attn.q(block.norm1(encoded)).view(1, 24, 2, 3)
    reduced, plain = (attn.sr(block.norm1(tokens).permute(0, 3, 1, 2))[0] for tokens in (encoded, x))
    k = attn.kv(reduced)[..., :6].reshape(1, 6, 2, 3)
    v = attn.kv(plain)[..., 6:].reshape(1, 6, 2, 3)
    weights = (torch.einsum('bihc,bjhc->bhij', q, k) / 3**0.5).softmax(-1)
    y = x + attn.proj(torch.einsum('bhij,bjhc->bihc', weights, v).reshape(x.shape))
    tokens, grid = x.flatten(1, 2), Grid(4, 6)
    found = block(tokens, grid, encodings)
    torch.testing.assert_close(found, (y + block.mlp(block.norm2(y), grid)).flatten(1, 2))
    plain = block(tokens, grid, build_position_encodings(None, encodings[0].stage))
    torch.testing.assert_close(blocks[1](tokens, grid, encodings), plain)
    assert not torch.equal(found, plain)


def test_fixed_weights_are_random_buffers_that_a_checkpoint_keeps() -> None:
    encoding = peg(trainable=False, conv_type='separable')
    assert list(encoding.parameters()) == []
    assert sorted(encoding.state_dict()) == sorted(peg(conv_type='separable').state_dict())
    model = PyramidCPVT(NARROW, position_encoding=dict(type='PEG', trainable=False))
    other = PyramidCPVT(NARROW, position_encoding=dict(type='PEG', trainable=False))
    weight = model.stages[0].position_encoding[0].convs['0'][0].weight
    assert weight.std() > 0.1
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.stages[0].position_encoding[0].convs['0'][0].weight, weight)
    model.requires_grad_(True)
    assert not weight.requires_grad


@pytest.mark.parametrize('kwargs, words', [
    (dict(conv_type='dense'), ('dense', 'conv_type', "'depthwise' or 'separable' or 'full'")),
    (dict(target='values'), ('values', 'target', "'tokens' or 'qk'")),
    (dict(bias='False'), ('bias', "'False'", 'False or True')),
    (dict(num_layers=0), ('num_layers', '0', 'at least 1')),
    (dict(positions=[0.]), ('positions', '[0.0]')),
    (dict(positions=[True]), ('positions', '[True]')),
    (dict(positions=(-2,)), ('positions', '(-2,)', '-1', '2')),
    (dict(target='qk', positions=(2,)), ('positions', '(2,)', 'qk', 'to 1')),
])
def test_bad_variants_are_named(kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, peg, **kwargs)
