import math

import pytest
import torch

from cpvt_mm import RandomFourierPE, SinusoidalPE, StageSpec
from tests.encodings import encode
from tests.models.conftest import assert_named


def test_2d_is_the_row_in_the_first_half_and_the_column_in_the_second(stage: StageSpec) -> None:
    added = encode(SinusoidalPE(stage), torch.zeros(1, 5, 7, 16), -1)[0]
    for y in range(5):
        for x in range(7):
            for part, place in ((0, y), (8, x)):
                for k in range(4):
                    angle = place / 10000**(2 * k / 8)
                    assert added[y, x, part + k] == pytest.approx(math.sin(angle), abs=1e-6)
                    assert added[y, x, part + 4 + k] == pytest.approx(math.cos(angle), abs=1e-6)


def test_1d_is_the_place_in_the_row_major_sequence(stage: StageSpec) -> None:
    added = encode(SinusoidalPE(stage, ndim=1, temperature=100), torch.zeros(1, 5, 7, 16), -1)[0]
    for y in range(5):
        for x in range(7):
            for k in range(8):
                angle = (7 * y + x) / 100**(2 * k / 16)
                assert added[y, x, k] == pytest.approx(math.sin(angle), abs=1e-5)
                assert added[y, x, 8 + k] == pytest.approx(math.cos(angle), abs=1e-5)


@pytest.mark.parametrize('ndim', [1, 2])
def test_tokens_in_16_bits_get_what_32_bits_give(stage: StageSpec, ndim: int) -> None:
    encoding, x = SinusoidalPE(stage, ndim), torch.zeros(1, 90, 110, 16)
    assert torch.equal(encode(encoding, x.bfloat16(), -1), encode(encoding, x, -1).bfloat16())
    assert list(encoding.state_dict()) == []


def test_fourier_features_are_of_pixel_centres_between_0_and_1(stage: StageSpec) -> None:
    encoding = RandomFourierPE(stage, scale=0.5)
    for size in ((5, 7), (10, 3)):
        added = encode(encoding, torch.zeros(1, *size, 16), -1)[0]
        for y in range(size[0]):
            for x in range(size[1]):
                centre = torch.tensor([(y + 0.5) / size[0], (x + 0.5) / size[1]])
                angles = 2 * math.pi * ((2 * centre - 1) @ encoding.frequencies)
                expected = torch.cat([angles.sin(), angles.cos()])
                torch.testing.assert_close(added[y, x], expected, atol=1e-5, rtol=1e-5)


def test_fourier_frequencies_are_fixed_and_kept(stage: StageSpec) -> None:
    encoding = RandomFourierPE(stage)
    assert list(encoding.parameters()) == []
    assert {name: tuple(t.shape) for name, t in encoding.state_dict().items()} == {'frequencies': (2, 8)}
    other = RandomFourierPE(stage)
    x = torch.zeros(1, 3, 4, 16)
    assert not torch.equal(encode(other, x, -1), encode(encoding, x, -1))
    other.load_state_dict(encoding.state_dict())
    assert torch.equal(encode(other, x, -1), encode(encoding, x, -1))


@pytest.mark.parametrize('cls', [SinusoidalPE, RandomFourierPE])
def test_autocast_does_not_coarsen_them(stage: StageSpec, cls: type) -> None:
    encoding, x = cls(stage), torch.zeros(1, 50, 70, 16)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        inside = encode(encoding, x, -1)
    assert torch.equal(inside, encode(encoding, x, -1))


def test_fourier_features_of_weights_in_16_bits_are_computed_in_32(stage: StageSpec) -> None:
    encoding = RandomFourierPE(stage).bfloat16()
    x = torch.zeros(1, 50, 70, 16)
    added = encode(encoding, x.bfloat16(), -1)
    torch.testing.assert_close(added, encode(encoding.float(), x, -1).bfloat16(), atol=0, rtol=0)


@pytest.mark.parametrize('cls, dims, kwargs, words', [
    (SinusoidalPE, 18, {}, ('ndim 2', 'divisible by 4', '18')),
    (SinusoidalPE, 9, dict(ndim=1), ('ndim 1', 'divisible by 2', '9')),
    (SinusoidalPE, 16, dict(ndim=0), ('ndim', '0')),
    (SinusoidalPE, 16, dict(temperature=1), ('temperature', 'above 1')),
    (RandomFourierPE, 9, {}, ('even', '9')),
    (RandomFourierPE, 16, dict(scale=-1), ('scale', '-1', 'above 0')),
    (RandomFourierPE, 16, dict(scale='1'), ('scale', "'1'", 'number')),
])
def test_bad_arguments_are_named(cls: type, dims: int, kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, cls, StageSpec(embed_dims=dims, num_heads=1, depth=1, grid=(4, 4)), **kwargs)
