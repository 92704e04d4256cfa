"""Encodings that act in attention: rotary and relative ones."""
import cmath
import math

import pytest
import torch

from cpvt_mm import CPVT, RelativePE, RotaryPE
from cpvt_mm.models.grid import Grid
from cpvt_mm.models.initialization import init_parameters
from cpvt_mm.models.layers import Block
from tests.encodings import STAGE


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
def test_turns_each_cell_by_the_place_of_its_centre(cell: int) -> None:
    grid, vectors = Grid(3, 5, cell, cell), torch.randn(1, 2, 15, 8)
    encoded = RotaryPE(STAGE, temperature=50.).qk(vectors, grid)
    for i in range(15):
        # A key covers `cell` tokens a side, of which the first is token `cell` times its own index.
        y, x = (cell * index + (cell - 1) / 2 for index in (i // 5, i % 5))
        for head in range(2):
            expected = rotated(vectors[0, head, i], y, x, 50.)
            torch.testing.assert_close(encoded[0, head, i], expected, atol=1e-5, rtol=1e-4)


def test_rotation_has_no_weights_and_keeps_the_dtype() -> None:
    encoding = RotaryPE(STAGE)
    assert encoding.qk(torch.randn(1, 2, 15, 8).bfloat16(), Grid(3, 5)).dtype == torch.bfloat16
    assert list(encoding.state_dict()) == [] and encoding.temperature == 100


@pytest.mark.parametrize('cell', [1, 2, 3, 1.25])
def test_the_key_gets_a_vector_for_its_distance_along_each_axis(cell: float) -> None:
    encoding = RelativePE(STAGE, max_distance=2)
    grid, key_grid = Grid(3, 5), Grid(math.ceil(3 / cell), math.ceil(5 / cell), cell, cell)
    q = torch.randn(1, 2, 15, 8)
    bias = encoding.bias(q, 1, grid, key_grid)
    assert bias.shape == (1, 2, grid.size, key_grid.size)

    def vector(table: torch.Tensor, query: int, key: int) -> torch.Tensor:
        distance = min(max(cell * key + (cell - 1) / 2 - query, -2), 2)
        low = int(distance // 1)
        return torch.lerp(table[low + 2], table[min(low + 3, 4)], distance - low)

    for i in range(grid.size):
        for j in range(key_grid.size):
            a = (vector(encoding.rows[1], i // 5, j // key_grid.width)
                 + vector(encoding.columns[1], i % 5, j % key_grid.width))
            torch.testing.assert_close(bias[0, :, i, j], q[0, :, i] @ a / 8**0.5)


def test_every_block_has_its_own_vectors_of_all_distances() -> None:
    encoding = RelativePE(STAGE)
    assert encoding.rows.shape == encoding.columns.shape == (3, 17, 8)
    q, grid = torch.randn(1, 2, 24, 8), Grid(4, 6)
    assert not torch.equal(encoding.bias(q, 0, grid, grid), encoding.bias(q, 1, grid, grid))


def test_it_matters_from_the_first_iteration() -> None:
    encodings = CPVT('tiny', position_encoding=dict(type='RelativePE')).position_encoding
    block, grid = Block(0, embed_dims=192, num_heads=3, mlp_ratio=4), Grid(14, 14)
    block.apply(init_parameters)
    x = torch.randn(1, grid.size, 192)
    q, k, _, bias, *_ = block.attn.project(x, grid, encodings)
    assert bias.std() > 0.1 * (q @ k.mT / 8).std()


@pytest.mark.parametrize('cls, kwargs, words', [
    (RotaryPE, dict(temperature=0.5), r'temperature is 0\.5, but must be a number above 1'),
    (RelativePE, dict(max_distance=0), 'max_distance is 0, but must be an int of at least 1'),
])
def test_bad_values_are_named(cls: type, kwargs: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cls(STAGE, **kwargs)
