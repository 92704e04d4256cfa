import cmath

import pytest
import torch

from cpvt_mm import PyramidCPVT, RotaryPE, StageSpec
from cpvt_mm.models.grid import Grid
from tests.conftest import NARROW


def rotated(vector: torch.Tensor, y: float, x: float, temperature: float) -> torch.Tensor:
    """One head's vector, by complex numbers: a half for y, a half for x, each pairing channel k with k + a quarter."""
    quarter = len(vector) // 4
    result = vector.clone()
    for start, place in ((0, y), (2 * quarter, x)):
        for k in range(quarter):
            angle = place / temperature**(2 * k / (2 * quarter))
            point = complex(vector[start + k], vector[start + quarter + k]) * cmath.exp(1j * angle)
            result[start + k], result[start + quarter + k] = point.real, point.imag
    return result


@pytest.mark.parametrize('cell', [1, 2, 3])
def test_turns_each_cell_by_the_place_of_its_centre(stage: StageSpec, cell: int) -> None:
    grid, vectors = Grid(3, 5, cell, cell), torch.randn(1, 2, 15, 8)
    encoded = RotaryPE(stage, temperature=50.).qk(vectors, grid)
    for i in range(15):
        # A key covers `cell` tokens a side, of which the first is token `cell` times its own index.
        y, x = (cell * index + (cell - 1) / 2 for index in (i // 5, i % 5))
        for head in range(2):
            expected = rotated(vectors[0, head, i], y, x, 50.)
            torch.testing.assert_close(encoded[0, head, i], expected, atol=1e-5, rtol=1e-4)


def test_logits_depend_on_how_far_apart_query_and_key_are(stage: StageSpec) -> None:
    q, k = torch.randn(2, 1, 2, 1, 8).expand(-1, -1, -1, 7 * 4, -1)  # the same everywhere
    grid, key_grid = Grid(7, 4), Grid(7, 4)
    encoding = RotaryPE(stage)
    logits = (encoding.qk(q, grid) @ encoding.qk(k, key_grid).mT).view(2, 7, 4, 7, 4)
    torch.testing.assert_close(logits[:, :-1, :-1, :-1, :-1], logits[:, 1:, 1:, 1:, 1:])
    assert (logits[:, 0, 0, 0, 0] - logits[:, 0, 0, 3, 0]).abs().min() > 1e-3


def test_a_key_of_a_reduced_grid_lies_amid_its_tokens(stage: StageSpec) -> None:
    encoding, vector = RotaryPE(stage), torch.randn(1, 2, 1, 8)
    tokens = encoding.qk(vector.expand(-1, -1, 9, -1), Grid(3, 3))
    key = encoding.qk(vector, Grid(1, 1, 3, 3))
    torch.testing.assert_close(key, tokens[:, :, 4:5])


def test_keeps_length_and_dtype(stage: StageSpec) -> None:
    vectors = torch.randn(1, 2, 15, 8)
    encoded = RotaryPE(stage).qk(vectors, Grid(3, 5))
    torch.testing.assert_close(encoded.norm(dim=-1), vectors.norm(dim=-1))
    assert RotaryPE(stage).qk(vectors.bfloat16(), Grid(3, 5)).dtype == torch.bfloat16
    assert list(RotaryPE(stage).state_dict()) == []
    assert RotaryPE(stage).temperature == 100


def test_heads_must_have_a_multiple_of_four_channels() -> None:
    narrow = dict(NARROW, num_heads=(1, 2, 4, 32))
    with pytest.raises(ValueError, match='multiple of 4 channels, but embed_dims 40 over num_heads 4 gives 10'):
        PyramidCPVT(narrow, position_encoding=dict(type='RotaryPE'))
    with pytest.raises(ValueError, match=r'temperature is 0\.5, but must be a number above 1'):
        RotaryPE(StageSpec(embed_dims=16, num_heads=2, depth=1, grid=(4, 4)), temperature=0.5)
