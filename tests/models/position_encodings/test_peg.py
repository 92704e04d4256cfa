import pytest
import torch
import torch.nn.functional as F

from cpvt_mm import PEG, PyramidCPVT, StageSpec
from tests.conftest import NARROW


def peg(**kwargs: object) -> PEG:
    return PEG(StageSpec(embed_dims=6, num_heads=2, depth=3, grid=(4, 4)), **kwargs)


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
    torch.testing.assert_close(encoding.after_block(x, 0), expected)


def test_parameters_of_the_papers_smallest_setting() -> None:
    encoding = PEG(StageSpec(embed_dims=192, num_heads=3, depth=12, grid=(14, 14)), bias=False)
    assert sum(p.numel() for p in encoding.parameters()) == 1728  # the paper's table of parameters


def test_zeros_around_the_grid_tell_tokens_apart_and_only_there() -> None:
    same_tokens = torch.ones(1, 7, 7, 6)
    encoded = peg().after_block(same_tokens, 0)[0]
    inner = encoded[1:-1, 1:-1]
    torch.testing.assert_close(inner, inner[:1, :1].expand_as(inner))
    assert (encoded[0, 0] - inner[0, 0]).abs().min() > 0


def test_inside_it_moves_with_the_image() -> None:
    encoding, x = peg(), torch.randn(1, 8, 8, 6)
    moved = encoding.after_block(x.roll((1, 1), (1, 2)), 0)
    torch.testing.assert_close(moved[:, 2:-1, 2:-1], encoding.after_block(x, 0)[:, 1:-2, 1:-2])


def test_follows_the_blocks_of_positions() -> None:
    encoding, x = peg(positions=(0, 2)), torch.randn(1, 4, 4, 6)
    assert list(encoding.convs) == ['0', '2']
    assert encoding.after_block(x, 1) is x
    assert not torch.equal(encoding.after_block(x, 0), encoding.after_block(x, 2))


def test_without_residual_only_the_convolution_is_left() -> None:
    with_residual, without = peg(), peg(residual=False)
    without.load_state_dict(with_residual.state_dict())
    x = torch.randn(1, 4, 4, 6)
    torch.testing.assert_close(without.after_block(x, 0) + x, with_residual.after_block(x, 0))


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
    (dict(kernal_size=3), TypeError, ('kernal_size', 'kernel_size')),
])
def test_bad_arguments_are_named(kwargs: dict, error: type[Exception], words: tuple[str, ...]) -> None:
    with pytest.raises(error) as caught:
        peg(**kwargs)
    assert all(word in str(caught.value) for word in words)
