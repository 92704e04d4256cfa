"""Parabolas: their factors have the product that the formula says, in all precisions; and attention adds it."""
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm import CPVT, ParabolicPE, PyramidCPVT
from cpvt_mm.encodings.base import PositionEncoding, PositionEncodings, StageSpec
from cpvt_mm.encodings.look_here import directed_heads
from cpvt_mm.tokens.grid import Grid
from tests.backbones import NARROW
from tests.models.conftest import Build, outspoken

float64 = pytest.mark.usefixtures('float64')
# Keys of the same grid, strided ones of a grid that they do not fill, and pooled ones.
KEYS = [Grid(5, 9), Grid(3, 5, 2, 2), Grid(2, 3, 4, 4), Grid(5, 7, 1, 9 / 7)]


def centres(cells: Grid) -> Tensor:
    """The rows and columns of the centres of cells, in query tokens: `(H * W, 2)`."""
    y, x = ((torch.arange(side) + 0.5) * cell - 0.5 for side, cell in
            ((cells.height, cells.cell_height), (cells.width, cells.cell_width)))
    return torch.cartesian_prod(y, x)


def paper(encoding: ParabolicPE, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor:
    """The sum of the paper's parabolas for each pair: `(B, heads, H * W, H' * W')`."""
    numbers = q @ encoding.weight[index] + encoding.constants[index]
    a, b = numbers.unflatten(-1, (2, -1)).unbind(-2)  # (B, heads, H * W, parabolas)
    offsets = (centres(grid)[:, None] - centres(key_grid)) / max(encoding.stage.grid)
    along = torch.einsum('hkc,ijc->hijk', encoding.directions[index], offsets.to(q.dtype))
    return (-F.softplus(a)[..., None, :] * along**2 + b[..., None, :] * along).sum(-1)


def looking(encoding: ParabolicPE, index: int, grid: Grid, key_grid: Grid) -> Tensor:
    """The bias without weights, `(heads, H * W, H' * W')`, up to a constant: it falls with the distance from a peak."""
    right, down, slopes = directed_heads(encoding.stage, index)
    peaks = torch.stack([down, right], -1) * (encoding.reach / slopes)[:, None]
    offsets = (centres(key_grid) - centres(grid)[:, None]) / max(encoding.stage.grid)
    return -((offsets - peaks[:, None, None]).norm(dim=-1) * (slopes / encoding.reach)[:, None, None])**2


def attended(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1) @ v


@float64
@pytest.mark.parametrize('key_grid', KEYS)
def test_without_weights_heads_look_in_eight_directions_and_learnt_ones_start_so(key_grid: Grid) -> None:
    stage, grid = StageSpec(embed_dims=24, num_heads=12, depth=3, grid=(4, 6)), Grid(5, 9)
    fixed, learnt = ParabolicPE(stage, trainable=False, reach=0.2), ParabolicPE(stage, reach=0.2)
    assert not fixed.state_dict()
    learnt.weight.data.zero_()
    q = torch.randn(1, 12, 45, 2)
    for index in range(3):
        expected = looking(fixed, index, grid, key_grid).softmax(-1)
        for encoding in (fixed, learnt):
            of_q, of_k = encoding.factors(q, index, grid, key_grid)
            actual = (of_q @ of_k.mT).softmax(-1).expand(1, 12, -1, -1)
            torch.testing.assert_close(actual, expected[None], rtol=1e-4, atol=1e-6)  # numbers of heads are float32
            assert (of_k[:, 3:].mean(0).abs() < 0.3).all()  # places, counted from the middle: large ones lose digits


@pytest.mark.parametrize(('dtype', 'bits'), [(torch.bfloat16, 8), (torch.float16, 11)])
@pytest.mark.parametrize('compiled', [False, pytest.param(True, marks=pytest.mark.slow)])
def test_half_precision_keeps_the_bias_of_large_grids(dtype: torch.dtype, bits: int, compiled: bool) -> None:
    grid, stage = Grid(40, 56), StageSpec(embed_dims=32, num_heads=1, depth=1, grid=(14, 14))
    encoding = ParabolicPE(stage)
    q, k, v = (torch.randn(1, 1, grid.size, 32).to(dtype) for _ in range(3))
    bias = paper(encoding.double(), q.double(), 0, grid, grid)
    encoding.float()
    widened = PositionEncodings([encoding]).attention
    with torch.autocast('cpu', dtype=dtype):
        wide = (torch.compile(widened) if compiled else widened)(q, k, v, 0, grid, grid)[:3]
    assert {(x.shape[-1], x.dtype) for x in wide} == {(48, dtype)}
    q_wide, k_wide, v_wide = (x.double() for x in wide)
    actual = F.scaled_dot_product_attention(q_wide, k_wide, v_wide, scale=32**-0.5)[..., :32]
    expected = attended(q.double(), k.double(), v.double(), bias)
    assert (actual - expected).norm() < 2**-bits * expected.norm()


class Direct(ParabolicPE):
    """Adds the paper's bias for all pairs."""
    factors = PositionEncoding.factors

    def bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor:
        return paper(self, q, index, grid, key_grid)


@float64
@pytest.mark.parametrize('padding', [None, 'exact'])
@pytest.mark.parametrize('num_parabolas, build', [
    (1, partial(PyramidCPVT, NARROW)), (2, partial(PyramidCPVT, dict(NARROW, sr_mode='pool'))),
    (7, partial(CPVT, dict(embed_dims=24, depth=2, num_heads=3, num_register_tokens=2)))])
def test_backbones_compute_the_same_as_with_the_papers_bias(build: Build, num_parabolas: int, padding: str | None
                                                            ) -> None:
    folded, direct = (outspoken(build, padding=padding, position_encoding=dict(type=cls, num_parabolas=num_parabolas))
                      for cls in (ParabolicPE, Direct))
    direct.load_state_dict(folded.state_dict())
    images, results = torch.randn(3, 3, 70, 50), []
    for model in (folded, direct):
        outputs = model(images, [(70, 50), (31, 50), (70, 9)] if padding else None)
        sum(out.sin().sum() for out in outputs).backward()
        results.append([*outputs, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)  # offsets of pooled keys are made in float32
