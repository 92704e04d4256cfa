"""Encodings that are added to the tokens: tables, and sines of places."""
import itertools
import math
import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from cpvt_mm import CPVT, LearnablePE, PyramidCPVT, RandomFourierPE, RandomTablePE, SinusoidalPE, StageSpec
from cpvt_mm.models.grid import resample
from cpvt_mm.models.position_encodings import PositionEncoding
from tests.conftest import NARROW
from tests.encodings import STAGE, encode
from tests.models.conftest import assert_named

TABLES = (LearnablePE, RandomTablePE)
tables = pytest.mark.parametrize('cls', TABLES)


@tables
@pytest.mark.parametrize('ndim', [1, 2])
def test_on_its_own_grid_the_table_is_added_as_it_is(cls: type, ndim: int) -> None:
    encoding, x = cls(STAGE, ndim=ndim), torch.randn(2, 4, 6, 16)
    added = encode(encoding, x, -1) - x
    torch.testing.assert_close(added, encoding.table.view(1, 4, 6, 16).expand(2, -1, -1, -1))


def cubic(x: float, a: float = -0.75) -> float:
    """Keys' cubic convolution kernel."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.


def interpolation_matrix(length: int, source: int) -> torch.Tensor:
    """`(length, source)`: cubic interpolation between pixel centres, the border repeated, no antialiasing."""
    matrix = torch.zeros(length, source)
    for i in range(length):
        centre = (i + 0.5) * source / length - 0.5
        first = int(centre // 1) - 1
        for j in range(first, first + 4):
            matrix[i, min(max(j, 0), source - 1)] += cubic(centre - j)
    return matrix


@pytest.mark.parametrize('rows, columns', [(9, 7), (3, 2), (4, 5), (1, 1)])
def test_a_2d_table_is_resampled_bicubically(rows: int, columns: int) -> None:
    encoding = LearnablePE(STAGE)
    added = encode(encoding, torch.zeros(1, rows, columns, 16), -1)[0]
    expected = torch.einsum('hi,wj,ijc->hwc', interpolation_matrix(rows, 4), interpolation_matrix(columns, 6),
                            encoding.table)
    torch.testing.assert_close(added, expected, atol=1e-6, rtol=1e-4)


def test_a_1d_table_is_resampled_linearly_along_the_sequence() -> None:
    encoding = LearnablePE(STAGE, ndim=1)
    assert encoding.table.shape == (24, 16)
    added = encode(encoding, torch.zeros(1, 3, 5, 16), -1)[0].flatten(0, 1)
    for i in range(15):
        place = min(max((i + 0.5) * 24 / 15 - 0.5, 0), 23)
        low = int(place)
        expected = torch.lerp(encoding.table[low], encoding.table[min(low + 1, 23)], place - low)
        torch.testing.assert_close(added[i], expected, atol=1e-6, rtol=1e-4)


def test_each_stage_has_a_table_of_its_tokens_at_img_size() -> None:
    model = PyramidCPVT(NARROW, img_size=(96, 130), position_encoding=dict(type='LearnablePE'))
    assert [tuple(s.position_encoding[0].table.shape) for s in model.stages] == [
        (24, 33, 16), (12, 17, 32), (6, 9, 40), (3, 5, 64)]
    for grid, shape in ((None, (14, 14, 192)), ((3, 5), (3, 5, 192))):  # the first is the paper's
        model = CPVT('tiny', position_encoding=dict(type='LearnablePE', grid=grid))
        assert [tuple(p.shape) for p in model.position_encoding.parameters()] == [shape]


@pytest.mark.parametrize('cls, name, shape', [(RandomTablePE, 'table', (4, 6, 16)),
                                              (RandomFourierPE, 'frequencies', (2, 8))])
def test_random_numbers_are_fixed_and_kept(cls: type, name: str, shape: tuple[int, ...]) -> None:
    encoding, other, x = cls(STAGE), cls(STAGE), torch.zeros(1, 3, 4, 16)
    assert list(encoding.parameters()) == []
    assert {name: tuple(tensor.shape) for name, tensor in encoding.state_dict().items()} == {name: shape}
    assert not torch.equal(encode(other, x, -1), encode(encoding, x, -1))
    other.load_state_dict(encoding.state_dict())
    assert torch.equal(encode(other, x, -1), encode(encoding, x, -1))


def test_noise_is_as_large_as_it_should_be() -> None:
    assert 2 < RandomTablePE(STAGE, std=3.).table.std() < 4


@pytest.mark.parametrize('strict', [True, False])
def test_load_state_dict_resamples_a_learnt_table_of_another_grid(strict: bool) -> None:
    other, same = LearnablePE(STAGE, grid=(7, 7)), LearnablePE(STAGE)
    weights = other.state_dict()
    same.load_state_dict(weights, strict=strict)
    assert torch.equal(same.table, resample(other.table, (4, 6)))
    assert weights['table'].shape == (7, 7, 16)
    flat = LearnablePE(STAGE, grid=(7, 7), ndim=1)
    flat.load_state_dict(weights)
    assert torch.equal(flat.table, other.table.flatten(0, 1))


@pytest.mark.parametrize('cls, ndim, shape', [(RandomTablePE, 2, (7, 7, 16)), (LearnablePE, 1, (49, 16))])
def test_a_table_that_cannot_be_resampled_is_refused(cls: type, ndim: int, shape: tuple[int, ...]) -> None:
    message = f'shape {shape} (table), but the model has one of shape (4, 6, 16)'
    with pytest.raises(ValueError, match=re.escape(message)):
        cls(STAGE).load_state_dict(cls(STAGE, grid=(7, 7), ndim=ndim).state_dict(), strict=False)


@pytest.mark.parametrize('size', [(4, 6), (5, 6)])
def test_a_learnt_table_gets_gradients(size: tuple[int, int]) -> None:
    encoding = LearnablePE(STAGE)
    F.mse_loss(encode(encoding, torch.zeros(1, *size, 16), -1), torch.ones(1, *size, 16)).backward()
    assert (encoding.table.grad != 0).all()


@pytest.mark.parametrize('ndim, temperature, tolerance', [(2, 10000, 1e-6), (1, 100, 1e-5)])
def test_sines_of_row_and_column_or_of_the_place_in_the_sequence(ndim: int, temperature: int, tolerance: float) -> None:
    kwargs = {} if ndim == 2 else dict(ndim=ndim, temperature=temperature)
    added, channels = encode(SinusoidalPE(STAGE, **kwargs), torch.zeros(1, 5, 7, 16), -1)[0], 16 // ndim
    for y, x in itertools.product(range(5), range(7)):
        places = (y, x) if ndim == 2 else (7 * y + x,)
        expected = [function(place / temperature**(2 * k / channels)) for place in places
                    for function in (math.sin, math.cos) for k in range(channels // 2)]
        assert added[y, x].tolist() == pytest.approx(expected, rel=0, abs=tolerance)
    assert list(SinusoidalPE(STAGE).state_dict()) == []


def test_fourier_features_are_of_pixel_centres_between_0_and_1() -> None:
    encoding = RandomFourierPE(STAGE, scale=0.5)
    for height, width in ((5, 7), (10, 3)):
        added = encode(encoding, torch.zeros(1, height, width, 16), -1)[0]
        for y, x in itertools.product(range(height), range(width)):
            centre = torch.tensor([(y + 0.5) / height, (x + 0.5) / width])
            angles = 2 * math.pi * ((2 * centre - 1) @ encoding.frequencies)
            torch.testing.assert_close(added[y, x], torch.cat([angles.sin(), angles.cos()]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('build', [*TABLES, RandomFourierPE, SinusoidalPE, partial(SinusoidalPE, ndim=1)])
def test_what_is_added_has_32_bits_and_tokens_keep_their_dtype(build: Callable[..., PositionEncoding]) -> None:
    x, half = torch.zeros(1, 90, 110, 16), torch.bfloat16
    encoding = build(STAGE).to(half)
    of_half = encode(encoding, x.to(half), -1)
    expected = encode(encoding.float(), x, -1)  # of the same numbers
    assert torch.equal(of_half, expected.to(half))
    # Tokens of 16 bits meet a table of 32 under autocast, and stay what they are.
    assert all(torch.equal(encode(encoding, x.to(dtype), -1), expected.to(dtype)) for dtype in (half, torch.float16))
    with torch.autocast('cpu', dtype=half):
        assert torch.equal(encode(encoding, x, -1), expected)


@pytest.mark.parametrize('cls, dims, kwargs, words', [
    *((cls, 16, dict(grid=(0, 3)), ('grid', '0', 'at least 1')) for cls in TABLES),
    *((cls, 16, dict(grid='14'), ('grid', "'14'", 'height and a width')) for cls in TABLES),
    *((cls, 16, dict(ndim=3), ('ndim', '3', '1', '2')) for cls in TABLES),
    (RandomTablePE, 16, dict(std=0), ('std is 0, but must be a number above 0',)),
    (SinusoidalPE, 18, {}, ('ndim 2', 'divisible by 4', '18')),
    (SinusoidalPE, 9, dict(ndim=1), ('ndim 1', 'divisible by 2', '9')),
    (SinusoidalPE, 16, dict(ndim=0), ('ndim', '0')), (RandomFourierPE, 9, {}, ('even', '9')),
    (SinusoidalPE, 16, dict(temperature=1), ('temperature', 'above 1')),
    (RandomFourierPE, 16, dict(scale=-1), ('scale', '-1', 'above 0')),
    (RandomFourierPE, 16, dict(scale='1'), ('scale', "'1'", 'number')),
])
def test_bad_values_are_named(cls: type, dims: int, kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, cls, StageSpec(embed_dims=dims, num_heads=1, depth=1, grid=(4, 4)), **kwargs)
