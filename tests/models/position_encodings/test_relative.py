import math

import pytest
import torch

from cpvt_mm import CPVT, RelativePE, StageSpec
from cpvt_mm.models.grid import Grid
from cpvt_mm.models.initialization import init_parameters
from cpvt_mm.models.layers import Block


@pytest.mark.parametrize('cell', [1, 2, 3, 1.25])
def test_the_key_gets_a_vector_for_its_distance_along_each_axis(stage: StageSpec, cell: float) -> None:
    encoding = RelativePE(stage, max_distance=2)
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


def test_every_block_has_its_own_vectors_of_all_distances(stage: StageSpec) -> None:
    encoding = RelativePE(stage)
    assert encoding.rows.shape == encoding.columns.shape == (3, 17, 8)
    q, grid = torch.randn(1, 2, 24, 8), Grid(4, 6)
    assert not torch.equal(encoding.bias(q, 0, grid, grid), encoding.bias(q, 1, grid, grid))


def test_beyond_the_clipping_distance_all_keys_are_alike(stage: StageSpec) -> None:
    grid = Grid(1, 9)
    bias = RelativePE(stage, max_distance=3).bias(torch.randn(1, 2, 9, 8), 0, grid, grid)
    of_first_query = bias[0, 0, 0]
    torch.testing.assert_close(of_first_query[3:], of_first_query[3].expand(6))
    assert len(of_first_query[:4].unique()) == 4


def test_the_distance_must_be_a_number_of_tokens(stage: StageSpec) -> None:
    with pytest.raises(ValueError, match='max_distance is 0, but must be an int of at least 1'):
        RelativePE(stage, max_distance=0)


def test_it_matters_from_the_first_iteration() -> None:
    encodings = CPVT('tiny', position_encoding=dict(type='RelativePE')).position_encoding
    block, grid = Block(0, embed_dims=192, num_heads=3, mlp_ratio=4), Grid(14, 14)
    block.apply(init_parameters)
    x = torch.randn(1, grid.size, 192)
    q, k, _, bias, *_ = block.attn.project(x, grid, encodings)
    assert bias.std() > 0.1 * (q @ k.mT / 8).std()
