import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from cpvt_mm import CPVT, PEG, PyramidCPVT, StageSpec
from cpvt_mm.encodings.base import PositionEncodings, build_position_encodings
from cpvt_mm.models.layers import Block, BlockSpec
from cpvt_mm.tokens.grid import Grid
from tests.all_encodings import encode
from tests.backbones import NARROW
from tests.models.conftest import Build

pytestmark = pytest.mark.usefixtures('float64')

STAGE = StageSpec(embed_dims=6, num_heads=2, depth=3, grid=(4, 4))
peg = partial(PEG, STAGE)


def encodings(**kwargs: object) -> PositionEncodings:
    return build_position_encodings(dict(type='PEG', **kwargs), STAGE)


@pytest.mark.parametrize('kernel_size, sides', [
    (1, (1, 1)), (3, (3, 3)), (7, (7, 7)), (3, (3, 3, 3)), ((1, 3, 5), (1, 3, 5)), ([5, 1, 3], (5, 1, 3))])
def test_adds_a_depthwise_convolution_with_zeros_around(kernel_size: object, sides: tuple[int, ...]) -> None:
    ndim = len(sides)
    encoding, lengths = peg(kernel_size=kernel_size, ndim=ndim), (4, 5, 6)[-ndim:]
    x, conv = torch.randn(2, *lengths, 6), encoding.convs['0'][0]
    assert conv.weight.shape == (6, 1, *sides)
    padded = F.pad(x, (0, 0, *(side // 2 for side in reversed(sides) for _ in range(2))))
    expected = x + conv.bias
    for offset in itertools.product(*map(range, sides)):
        part = (slice(start, start + length) for start, length in zip(offset, lengths, strict=True))
        expected = expected + padded[(slice(None), *part)] * conv.weight[(slice(None), 0, *offset)]
    torch.testing.assert_close(encode(encoding, x, 0), expected)


@pytest.mark.parametrize('conv_type', ['depthwise', 'separable', 'full'])
@pytest.mark.parametrize('padding', ['zeros', 'replicate', 'reflect', 'circular'])
def test_padding_is_that_of_a_torch_convolution_with_the_same_weights(padding: str, conv_type: str) -> None:
    encoding, x = peg(padding=padding, conv_type=conv_type, kernel_size=5), torch.randn(2, 3, 5, 6)
    zeros = peg(conv_type=conv_type, kernel_size=5)
    zeros.load_state_dict(encoding.state_dict())
    convs = encoding.convs['0'][0] if conv_type == 'separable' else [encoding.convs['0'][0]]
    first = nn.Conv2d(6, 6, 5, padding=2, groups=convs[0].groups, bias=conv_type != 'separable', padding_mode=padding)
    first.load_state_dict(convs[0].state_dict())
    torch.testing.assert_close(encode(encoding, x, 0), x + nn.Sequential(first, *convs[1:])(
        x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
    inner = (slice(None), slice(2, -2), slice(2, -2))
    image = torch.randn(1, 6, 7, 6)
    torch.testing.assert_close(encode(encoding, image, 0)[inner], encode(zeros, image, 0)[inner])
    assert torch.equal(encode(encoding, image, 0), encode(zeros, image, 0)) == (padding == 'zeros')


@pytest.mark.parametrize('padding, fits, too_small', [
    ('replicate', (1, 1), None), ('reflect', (3, 2), (2, 9)), ('reflect', (3, 2), (9, 1)),
    ('circular', (2, 1), (1, 9))])
def test_a_grid_that_is_too_small_for_the_padding_is_refused(padding: str, fits: tuple[int, int],
                                                             too_small: tuple[int, int] | None) -> None:
    encoding = peg(padding=padding, kernel_size=(5, 3))
    assert encode(encoding, torch.randn(1, *fits, 6), 0).isfinite().all()
    if too_small:
        with pytest.raises(ValueError, match=f'{too_small[0]} x {too_small[1]} cells is too small .*{padding}'):
            encode(encoding, torch.randn(1, *too_small, 6), 0)


@pytest.mark.parametrize('padding', ['zeros', 'replicate', 'reflect', 'circular'])
@pytest.mark.parametrize('build, side', [
    (partial(CPVT, dict(embed_dims=16, depth=3, num_heads=2), img_size=64, cls_token=False), 16),
    (partial(PyramidCPVT, NARROW), 32)], ids=['plain', 'pyramid'])
def test_only_circular_padding_lets_maps_shift_with_the_image(build: Build, side: int, padding: str) -> None:
    """Attention sees no positions, so the paper's absolute reference is the zero padding alone."""
    model = build(position_encoding=dict(type='PEG', padding=padding)).eval()
    image = torch.randn(1, 3, 4 * side, 5 * side)
    cells = (1, 2)
    shifted = model(image.roll([count * side for count in cells], (2, 3)))
    for stride, output, moved in zip(model.strides, model(image), shifted, strict=True):
        expected = output.roll([count * side // stride for count in cells], (2, 3))
        assert torch.allclose(moved, expected, rtol=0, atol=1e-9) == (padding == 'circular')


@pytest.mark.parametrize('padding', ['replicate', 'reflect', 'circular'])
def test_images_of_several_sizes_are_as_alone_with_any_padding(padding: str) -> None:
    model = PyramidCPVT(NARROW, position_encoding=dict(type='PEG', padding=padding), padding='exact').eval()
    images = [torch.randn(3, *size) for size in ((96, 64), (64, 128), (96, 64))]
    for outputs, image in zip(model.forward_packed(images), images, strict=True):
        for together, alone in zip(outputs, model(image[None]), strict=True):
            torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)


def test_follows_the_blocks_of_positions_of_which_minus_one_is_before_the_first() -> None:
    encoding, x = peg(positions=(-1, 0, 2)), torch.randn(1, 4, 5, 6)
    assert list(encoding.convs) == ['-1', '0', '2']
    assert encode(encoding, x, 1) is x
    different = [x, *(encode(encoding, x, position) for position in (-1, 0, 2))]
    assert not any(torch.equal(*pair) for pair in itertools.combinations(different, 2))
    assert encode(peg(), x, -1) is x


@pytest.mark.parametrize('residual', [True, False])
def test_separable_mixes_channels_after_neighbours(residual: bool) -> None:
    encoding, x = peg(conv_type='separable', residual=residual), torch.randn(1, 4, 5, 6)
    depthwise, pointwise = encoding.convs['0'][0]
    mixed = F.conv2d(x.permute(0, 3, 1, 2), depthwise.weight, padding=1, groups=6).permute(0, 2, 3, 1)
    expected = residual * x + mixed @ pointwise.weight[:, :, 0, 0].T + pointwise.bias
    torch.testing.assert_close(encode(encoding, x, 0), expected)


def test_full_is_an_ordinary_convolution_and_layers_follow_each_other_each_with_its_residual() -> None:
    encoding, x = peg(conv_type='full', kernel_size=5, num_layers=3), torch.randn(1, 4, 5, 6)
    expected = x.permute(0, 3, 1, 2)
    for conv in encoding.convs['0']:
        expected = expected + F.conv2d(expected, conv.weight, conv.bias, padding=2)
    torch.testing.assert_close(encode(encoding, x, 0), expected.permute(0, 2, 3, 1))


def test_target_qk_is_attention_with_values_of_the_plain_tokens() -> None:
    encoding = encodings(target='qk')
    block, last = (Block(index, BlockSpec(6, 2, 2, 2)) for index in (1, 2))
    last.load_state_dict(block.state_dict())
    x, attn = torch.randn(1, 4, 6, 6), block.attn
    encoded = x + encoding[0].convs['0'][0](x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    q = attn.q(block.norm1(encoded)).view(1, 24, 2, 3)
    reduced, plain = (attn.sr(block.norm1(tokens).flatten(1, 2), Grid(4, 6))[0] for tokens in (encoded, x))
    k = attn.kv(reduced)[..., :6].reshape(1, 6, 2, 3)
    v = attn.kv(plain)[..., 6:].reshape(1, 6, 2, 3)
    weights = (torch.einsum('bihc,bjhc->bhij', q, k) / 3**0.5).softmax(-1)
    y = x + attn.proj(torch.einsum('bhij,bjhc->bihc', weights, v).reshape(x.shape))
    tokens, grid = x.flatten(1, 2), Grid(4, 6)
    actual = block(tokens, grid, encoding)
    torch.testing.assert_close(actual, (y + block.mlp(block.norm2(y), grid)).flatten(1, 2))
    plain = block(tokens, grid, build_position_encodings(None, STAGE))
    torch.testing.assert_close(last(tokens, grid, encoding), plain)
    assert not torch.equal(actual, plain)


def test_fixed_weights_are_random_buffers_that_a_checkpoint_keeps() -> None:
    encoding = peg(trainable=False, conv_type='separable')
    assert list(encoding.parameters()) == []
    assert sorted(encoding.state_dict()) == sorted(peg(conv_type='separable').state_dict())
    model, other = (PyramidCPVT(NARROW, position_encoding=dict(type='PEG', trainable=False)) for _ in range(2))
    weight, loaded = (one.get_buffer('stages.0.position_encoding.0.convs.0.0.weight') for one in (model, other))
    assert weight.std() > 0.1
    other.load_state_dict(model.state_dict())
    assert torch.equal(loaded, weight)
    model.requires_grad_(True)
    assert not weight.requires_grad


@pytest.mark.parametrize('kwargs', [
    dict(positions=(-1, 1), num_layers=2), dict(conv_type='separable', trainable=False),
    dict(conv_type='full', bias=False), dict(residual=False), dict(target='qk')])
def test_weights_of_images_become_the_middle_slice_so_that_a_frame_starts_as_an_image(kwargs: dict) -> None:
    flat, deep = encodings(kernel_size=5, **kwargs), encodings(ndim=3, kernel_size=(3, 5, 5), **kwargs)
    deep.load_state_dict(flat.state_dict())
    frames = torch.randn(4, 3, 5, 6)
    for num_frames, index, point in itertools.product((1, 2, 4), range(-1, 3), ('tokens', 'qk_tokens')):
        if (index, point) != (-1, 'qk_tokens'):  # there is no block -1
            actual = encode(deep, frames, index, num_frames, point)
            torch.testing.assert_close(actual, encode(flat, frames, index, point=point))


@pytest.mark.parametrize('kwargs', [dict(num_layers=2, positions=(-1, 0, 1)), dict(conv_type='separable'),
                                    dict(target='qk'), dict(ndim=3)])
@pytest.mark.parametrize('build', [
    partial(CPVT, dict(embed_dims=16, depth=3, num_heads=2)),
    partial(PyramidCPVT, dict(NARROW, depths=(3, 3, 3, 3)))], ids=['plain', 'pyramid'])
def test_from_zero_it_changes_nothing_until_it_is_trained(build: Build, kwargs: dict) -> None:
    plain = build(position_encoding=dict(type='LearnablePE'))
    model = build(position_encoding=[dict(type='LearnablePE'), dict(type='PEG', init='zero', **kwargs)])
    missing, _ = model.load_state_dict(plain.state_dict(), strict=False)
    assert missing and all('convs' in name for name in missing)
    image = torch.randn(2, 3, 70, 50)
    model.init_weights()
    outputs = model(image, num_frames=1)
    assert all(map(torch.equal, outputs, plain(image)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    sum((output * torch.randn_like(output)).sum() for output in outputs).backward()
    optimizer.step()
    assert all(parameter.any() for name, parameter in model.named_parameters() if name in missing)
