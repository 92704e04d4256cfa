import re

import pytest
import torch
import torch.nn.functional as F

from cpvt_mm import CPVT, LearnablePE, PyramidCPVT, RandomTablePE, StageSpec
from cpvt_mm.models.grid import resample
from tests.conftest import NARROW
from tests.encodings import encode
from tests.models.conftest import assert_named


@pytest.mark.parametrize('cls', [LearnablePE, RandomTablePE])
@pytest.mark.parametrize('ndim', [1, 2])
def test_on_its_own_grid_the_table_is_added_as_it_is(stage: StageSpec, cls: type, ndim: int) -> None:
    encoding, x = cls(stage, ndim=ndim), torch.randn(2, 4, 6, 16)
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
def test_a_2d_table_is_resampled_bicubically(stage: StageSpec, rows: int, columns: int) -> None:
    encoding = LearnablePE(stage)
    added = encode(encoding, torch.zeros(1, rows, columns, 16), -1)[0]
    expected = torch.einsum('hi,wj,ijc->hwc', interpolation_matrix(rows, 4), interpolation_matrix(columns, 6),
                            encoding.table)
    torch.testing.assert_close(added, expected, atol=1e-6, rtol=1e-4)


def test_a_1d_table_is_resampled_linearly_along_the_sequence(stage: StageSpec) -> None:
    encoding = LearnablePE(stage, ndim=1)
    assert encoding.table.shape == (24, 16)
    added = encode(encoding, torch.zeros(1, 3, 5, 16), -1)[0].flatten(0, 1)
    for i in range(15):
        place = min(max((i + 0.5) * 24 / 15 - 0.5, 0), 23)
        low = int(place)
        expected = torch.lerp(encoding.table[low], encoding.table[min(low + 1, 23)], place - low)
        torch.testing.assert_close(added[i], expected, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize('cls', [LearnablePE, RandomTablePE])
def test_dtype_is_kept(stage: StageSpec, cls: type) -> None:
    encoding = cls(stage).to(torch.bfloat16)
    assert encode(encoding, torch.randn(1, 7, 9, 16, dtype=torch.bfloat16), -1).dtype == torch.bfloat16
    # Tokens of 16 bits meet a table of 32 under autocast, and stay what they are.
    assert encode(cls(stage), torch.randn(1, 7, 9, 16, dtype=torch.float16), -1).dtype == torch.float16


def test_a_table_in_16_bits_is_resampled_in_32(stage: StageSpec) -> None:
    whole = LearnablePE(stage)
    half = LearnablePE(stage)
    half.load_state_dict(whole.state_dict())
    half.to(torch.bfloat16)
    whole.to(torch.bfloat16).float()  # the same numbers
    x = torch.zeros(1, 9, 7, 16)
    torch.testing.assert_close(encode(half, x.bfloat16(), -1), encode(whole, x, -1).bfloat16(), atol=0, rtol=0)


def test_each_stage_has_a_table_of_its_tokens_at_img_size() -> None:
    model = PyramidCPVT(NARROW, img_size=(96, 130), position_encoding=dict(type='LearnablePE'))
    assert [tuple(s.position_encoding[0].table.shape) for s in model.stages] == [
        (24, 33, 16), (12, 17, 32), (6, 9, 40), (3, 5, 64)]
    model = CPVT('tiny', position_encoding=dict(type='LearnablePE', grid=(3, 5)))
    assert model.position_encoding[0].table.shape == (3, 5, 192)


def test_parameters_of_the_papers_table() -> None:
    model = CPVT('tiny', position_encoding=dict(type='LearnablePE'))
    assert sum(p.numel() for p in model.position_encoding.parameters()) == 37_632


def test_a_random_table_is_fixed_and_kept(stage: StageSpec) -> None:
    encoding = RandomTablePE(stage, std=3.)
    assert list(encoding.parameters()) == []
    assert list(encoding.state_dict()) == ['table']
    assert 2 < encoding.table.std() < 4


@pytest.mark.parametrize('strict', [True, False])
def test_load_state_dict_resamples_a_learnt_table_of_another_grid(stage: StageSpec, strict: bool) -> None:
    other, same = LearnablePE(stage, grid=(7, 7)), LearnablePE(stage)
    weights = other.state_dict()
    same.load_state_dict(weights, strict=strict)
    assert torch.equal(same.table, resample(other.table, (4, 6)))
    assert weights['table'].shape == (7, 7, 16)
    flat = LearnablePE(stage, grid=(7, 7), ndim=1)
    flat.load_state_dict(weights)
    assert torch.equal(flat.table, other.table.flatten(0, 1))


@pytest.mark.parametrize(('cls', 'kwargs', 'shape'), [
    (RandomTablePE, dict(grid=(7, 7)), (7, 7, 16)),
    (LearnablePE, dict(grid=(7, 7), ndim=1), (49, 16)),
])
def test_a_table_that_cannot_be_resampled_is_refused(stage: StageSpec, cls: type, kwargs: dict, shape: tuple) -> None:
    message = f'shape {shape} (table), but the model has one of shape (4, 6, 16)'
    with pytest.raises(ValueError, match=re.escape(message)):
        cls(stage).load_state_dict(cls(stage, **kwargs).state_dict(), strict=False)


@pytest.mark.parametrize('kwargs, words', [
    (dict(grid=(0, 3)), ('grid', '0', 'at least 1')),
    (dict(grid='14'), ('grid', "'14'", 'height and a width')),
    (dict(ndim=3), ('ndim', '3', '1', '2')),
])
@pytest.mark.parametrize('cls', [LearnablePE, RandomTablePE])
def test_bad_arguments_are_named(stage: StageSpec, cls: type, kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, cls, stage, **kwargs)


def test_noise_needs_a_size(stage: StageSpec) -> None:
    with pytest.raises(ValueError, match='std is 0, but must be a number above 0'):
        RandomTablePE(stage, std=0)


@pytest.mark.parametrize('size', [(4, 6), (5, 6)])
def test_a_learnt_table_gets_gradients(stage: StageSpec, size: tuple[int, int]) -> None:
    encoding = LearnablePE(stage)
    F.mse_loss(encode(encoding, torch.zeros(1, *size, 16), -1), torch.ones(1, *size, 16)).backward()
    assert (encoding.table.grad != 0).all()
