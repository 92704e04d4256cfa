"""Layers have what equality with the models of others does not tell (`tests/zoo`)."""
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpvt_mm.encodings.base import PositionEncodings
from cpvt_mm.models.layers import Attention, Block, BlockSpec, residual
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


@pytest.mark.parametrize('grid, images', [(Grid(1, 2), 1), (Grid(1, 2, frames=3), 3)], ids=['images', 'clips'])
def test_stochastic_depth_computes_what_it_keeps(grid: Grid, images: int) -> None:
    x, weight, computed = torch.randn(12, 2, 3), torch.ones((), requires_grad=True), []

    def branch(part: Tensor, of: Grid) -> Tensor:
        computed.append(len(part))
        return weight * part.square()

    kept, mean = [], torch.zeros(12, 2, 3)
    for _ in range(200):
        leaf = x.clone().requires_grad_()
        added = residual(leaf, branch, grid, 0.25) - leaf
        keeps = added.detach().flatten(1).any(1)
        torch.testing.assert_close(added, leaf.square() * keeps[:, None, None] / 0.75)
        gradient, of_weight = torch.autograd.grad(added.sum(), (leaf, weight))
        torch.testing.assert_close(gradient, 2 * x * keeps[:, None, None] / 0.75)
        torch.testing.assert_close(of_weight, added.detach().sum())
        assert computed[-1] == (keeps.sum() or 12) and (keeps.view(-1, images) == keeps[::images, None]).all()
        kept.append(keeps[::images])
        mean += added.detach() / 200
    share = torch.cat(kept).double().mean()
    assert share == pytest.approx(0.75, abs=5 * (0.75 * 0.25 / (200 * 12 / images))**0.5)  # five standard deviations
    # For each image 200 draws of a factor with the variance 1 / 3: six standard deviations.
    assert (mean - x.square()).abs().max() < 6 * (x.square().max() / 600**0.5)


@pytest.mark.parametrize('training, rate', [(True, 0.), (False, 0.5)])
def test_without_stochastic_depth_nothing_is_drawn(training: bool, rate: float) -> None:
    block, state = Block(0, BlockSpec(4, 1, 4), rate).train(training), torch.get_rng_state()
    block(torch.randn(2, 2, 4, generator=torch.Generator().manual_seed(0)), Grid(1, 2), PositionEncodings())
    assert torch.equal(torch.get_rng_state(), state)
