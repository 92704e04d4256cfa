"""Biases that depend on the offset of the key from the query: each pair by its own formula."""
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cpvt_mm import ContinuousRelativePE, FirePE, LookHerePE, RelativePE
from cpvt_mm.encodings.base import PositionEncoding, StageSpec
from cpvt_mm.tokens.grid import Grid
from tests.all_encodings import STAGE

cells = pytest.mark.parametrize('cell', [1, 2, 3, 1.25])


def assert_pairs(encoding: PositionEncoding, index: int, cell: float, expected: Callable[..., list[float]],
                 q: Tensor | None = None) -> None:
    """Compares the bias of each pair with a function of its row and column offset, and of its query if there is one."""
    grid, key_grid = Grid(3, 5), Grid(math.ceil(3 / cell), math.ceil(5 / cell), cell, cell)
    bias = encoding.bias(torch.zeros(2, 2, 15, 8) if q is None else q, index, grid, key_grid)
    assert bias.shape == (1, encoding.stage.num_heads, 15, key_grid.size)
    for i in range(15):
        for j in range(key_grid.size):
            # A key covers `cell` tokens a side, of which the first is token `cell` times its own index.
            down = cell * (j // key_grid.width) + (cell - 1) / 2 - i // 5
            right = cell * (j % key_grid.width) + (cell - 1) / 2 - i % 5
            wanted = expected(down, right) if q is None else expected(down, right, q[0, :, i])
            assert bias[0, :, i, j].tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def mlp(weights: dict[str, Tensor], prefix: str, point: list[float]) -> Tensor:
    """Computes two linear layers with a ReLU between, in float64."""
    w, b, v = (weights[prefix + name].double() for name in ('fc1.weight', 'fc1.bias', 'fc2.weight'))
    return v @ (w @ torch.tensor(point, dtype=torch.float64) + b).clamp(min=0) + weights.get(f'{prefix}fc2.bias', 0)


@cells
def test_the_key_gets_a_vector_for_its_distance_along_each_axis(cell: float) -> None:
    encoding = RelativePE(STAGE, max_distance=2)
    assert encoding.rows.shape == encoding.columns.shape == (3, 2 + 1 + 2, 8)  # of each block

    def vector(table: Tensor, distance: float) -> Tensor:
        distance = min(max(distance, -2), 2)
        low = int(distance // 1)
        return torch.lerp(table[low + 2], table[min(low + 3, 4)], distance - low)

    def expected(down: float, right: float, q: Tensor) -> list[float]:
        return (q @ (vector(encoding.rows[1], down) + vector(encoding.columns[1], right)) / 8**0.5).tolist()

    assert_pairs(encoding, 1, cell, expected, torch.randn(1, 2, 15, 8))


@cells
def test_swins_bias_grows_with_the_logarithm(cell: float) -> None:
    encoding = ContinuousRelativePE(STAGE, hidden_dims=4)
    weights = encoding.state_dict()

    def coordinate(offset: float, side: int) -> float:
        return math.copysign(math.log2(1 + abs(8 * offset / (side - 1))) / 3, offset)

    def expected(down: float, right: float) -> list[float]:
        point = [coordinate(down, 4), coordinate(right, 6)]  # whatever the size of the image: the grid of `img_size`
        return (16 / (1 + torch.exp(-mlp(weights, 'blocks.1.', point)))).tolist()

    assert_pairs(encoding, 1, cell, expected)


@cells
@pytest.mark.parametrize('longest', [(4., 6.), (2., 6.), (4., 2.)])
def test_fire_interpolates_what_is_longer_than_the_threshold(longest: tuple[float, float], cell: float) -> None:
    encoding = FirePE(STAGE, hidden_dims=4, scale=0.7)
    assert encoding.blocks[0].threshold.tolist() == [4, 6]  # the grid of `img_size`
    encoding.blocks[1].threshold.data.copy_(torch.tensor(longest))
    weights = encoding.state_dict()

    def coordinate(offset: float, side: float) -> float:
        return math.copysign(math.log(1 + 0.7 * abs(offset)) / math.log(1 + 0.7 * side), offset)

    def expected(down: float, right: float) -> list[float]:
        point = [coordinate(down, max(longest[0], 3)), coordinate(right, max(longest[1], 5))]
        return mlp(weights, 'blocks.1.mlp.', point).tolist()

    assert_pairs(encoding, 1, cell, expected)


@cells
@pytest.mark.parametrize('fov', [45, 180, 360])
def test_heads_look_into_their_field_of_view(fov: float, cell: float) -> None:
    encoding = LookHerePE(StageSpec(embed_dims=24, num_heads=12, depth=3, grid=(4, 6)), fov=fov, slope=2.)
    degrees = [0, 180, 90, 270, 45, 225, 135, 315]  # clockwise from upwards

    def expected(down: float, right: float) -> list[float]:
        distance, towards = math.hypot(down, right) / cell, math.degrees(math.atan2(right, -down))
        is_own = max(abs(down), abs(right)) <= cell / 2
        biases = [-2 * distance if is_own or abs((towards - degree + 180) % 360 - 180) <= fov / 2 + 1e-9 else -math.inf
                  for degree in degrees]
        return [*biases, *(-2 * distance * slope for slope in (1 / 2, 1 / 8, 1 / 32, 1 / 128))]

    assert_pairs(encoding, 1, cell, expected)  # the slope of the middle block is 1


def test_blocks_with_few_heads_take_turns_and_see_further() -> None:
    encoding = LookHerePE(StageSpec(embed_dims=8, num_heads=2, depth=5, grid=(3, 3)))
    grid = Grid(3, 3)
    seen = []
    for index, slope in enumerate([1.5, 1.25, 1, 0.75, 0.5]):
        bias = encoding.bias(torch.zeros(1, 2, 9, 4), index, grid, grid)[0, :, 4]  # of the cell in the middle
        assert bias.isfinite().sum(dim=1).tolist() == [4, 4]
        assert bias[bias.isfinite()].min().item() == pytest.approx(-slope * math.sqrt(2))
        seen.append([[cell for cell in range(9) if head[cell].isfinite()] for head in bias])
    assert seen[:4] == [[[0, 1, 2, 4], [4, 6, 7, 8]], [[2, 4, 5, 8], [0, 3, 4, 6]],
                        [[1, 2, 4, 5], [3, 4, 6, 7]], [[4, 5, 7, 8], [0, 1, 3, 4]]]
    assert seen[4] == seen[0]


@pytest.mark.slow
@pytest.mark.parametrize('size', [(1, 1), (1, 7), (23, 16), (100, 57)])
@pytest.mark.parametrize('cell', [1, 2, 8, None])
def test_each_query_sees_a_key(cell: int | None, size: tuple[int, int]) -> None:
    """So that no softmax is of nothing; pooled keys (None) have cells of any size."""
    key_size = [math.ceil(side / cell) if cell else 7 for side in size]
    sides = [cell or side / parts for side, parts in zip(size, key_size, strict=True)]
    encoding = LookHerePE(StageSpec(embed_dims=8, num_heads=1, depth=8, grid=(4, 4)), fov=1.)
    for index in range(8):
        bias = encoding.bias(torch.zeros(1, 1, size[0] * size[1], 8), index, Grid(*size), Grid(*key_size, *sides))
        assert bias.isfinite().any(dim=-1).all()
