"""What equality with the models of others does not tell of a layer (`tests/zoo`)."""
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.encodings import PositionEncodings
from cpvt_mm.models.layers import Attention, Block, BlockSpec
from cpvt_mm.models.pvt_parts import LayerScale, PoolReduction, average_pool
from cpvt_mm.tokens.grid import Grid

pytestmark = pytest.mark.usefixtures('float64')


@pytest.mark.parametrize(('make_reduction', 'sr_ratio', 'expected'), [
    (None, 1, Grid(5, 7)), (None, 2, Grid(3, 4, 2, 2)), (PoolReduction, 2, Grid(7, 7, 5 / 7, 1))])
def test_keys_know_the_cells_of_their_grid(make_reduction: type[nn.Module] | None, sr_ratio: int, expected: Grid
                                           ) -> None:
    attention = Attention(0, BlockSpec(12, 3, 4, sr_ratio, make_reduction=make_reduction))
    _, keys, _, _, grid = attention.project(torch.randn(2, 35, 12), Grid(5, 7), PositionEncodings())
    assert grid == expected and keys.shape == (2, 3, expected.size, 4)


@pytest.mark.parametrize('shape', [(1, 1), (7, 13), (30, 5)])
@pytest.mark.parametrize('size', [(1, 1), (7, 3)])
def test_products_with_matrices_pool_as_torch_does(shape: tuple[int, int], size: tuple[int, int]) -> None:
    x = torch.randn(2, 4, *shape)
    pooled = average_pool(x.permute(0, 2, 3, 1), size).permute(0, 3, 1, 2)
    torch.testing.assert_close(pooled, F.adaptive_avg_pool2d(x, size))


def test_layer_scale_starts_as_its_value_in_both_branches() -> None:
    block = Block(0, BlockSpec(8, 2, 4, make_scale=lambda: LayerScale(8, 0.5)))
    assert block.ls1.gamma.tolist() == block.ls2.gamma.tolist() == [0.5] * 8


def dropped(x: Tensor, rate: float, training: bool = True) -> Tensor:
    return Block(0, BlockSpec(3, 1, 4), rate).train(training).branch(x, None, Grid(1, 2))


def test_drop_path_keeps_each_sample_with_its_probability_and_keeps_the_mean() -> None:
    x = torch.ones(4000, 2, 3)
    kept = (out := dropped(x, 0.25))[:, 0, 0] > 0
    torch.testing.assert_close(out, (kept / 0.75)[:, None, None].expand_as(out), check_dtype=False)
    assert kept.float().mean() == pytest.approx(0.75, abs=0.03)
    assert dropped(x, 0.5, training=False) is x and dropped(x, 0.) is x
