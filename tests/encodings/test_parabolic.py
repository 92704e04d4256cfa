"""Parabolas: their factors have the product that the formula says, in all precisions; and attention adds it."""
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_mm import CPVT, ParabolicPE, PyramidCPVT
from cpvt_mm.encodings import PositionEncoding, PositionEncodings, StageSpec
from cpvt_mm.encodings.biases import directed_heads
from cpvt_mm.tokens.grid import Grid
from tests.all_encodings import STAGE
from tests.conftest import NARROW
from tests.models.conftest import Build, assert_named, outspoken

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


def drawn(num_parabolas: int = 3, stage: StageSpec = STAGE) -> ParabolicPE:
    encoding = ParabolicPE(stage, num_parabolas)
    for parameter in encoding.parameters():
        parameter.data.normal_()
    return encoding


def attended(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1) @ v


@float64
@pytest.mark.parametrize('extra', [0, 3])
@pytest.mark.parametrize('num_parabolas', [1, 2, 7])
@pytest.mark.parametrize('key_grid', KEYS)
def test_wider_queries_and_keys_attend_as_with_the_papers_bias(key_grid: Grid, num_parabolas: int, extra: int) -> None:
    grid, key_grid = Grid(5, 9, extra=extra), key_grid._replace(extra=extra)
    encoding = drawn(num_parabolas)
    q, k, v = (torch.randn(2, 2, extra + of.size, 8, requires_grad=True) for of in (grid, key_grid, key_grid))
    bias = F.pad(paper(encoding, q[:, :, extra:], 1, grid, key_grid), (extra, 0, extra, 0))
    wide = PositionEncodings([encoding]).attention(q, k, v, 1, grid, key_grid)[:3]
    assert {x.shape[-1] for x in wide} == {16}  # 8, and 5 or 6 factors, and zeros
    found = F.scaled_dot_product_attention(*wide, scale=8**-0.5)
    assert not found[..., 8:].any()
    inputs = q, k, v, *encoding.parameters()
    results = [(out, *torch.autograd.grad(out.sin().sum(), inputs))
               for out in (found[..., :8], attended(q, k, v, bias))]
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-6)  # offsets of pooled keys are made in float32


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
            found = (of_q @ of_k.mT).softmax(-1).expand(1, 12, -1, -1)
            torch.testing.assert_close(found, expected[None], rtol=1e-4, atol=1e-6)  # numbers of heads are float32


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
    found = F.scaled_dot_product_attention(q_wide, k_wide, v_wide, scale=32**-0.5)[..., :32]
    expected = attended(q.double(), k.double(), v.double(), bias)
    assert (found - expected).norm() < 2**-bits * expected.norm()


@pytest.mark.parametrize('key_grid', KEYS)
def test_places_are_small_numbers(key_grid: Grid) -> None:
    q, grid = torch.randn(1, 2, 45, 8), Grid(5, 9)
    _, of_key = drawn().factors(q, 0, grid, key_grid)
    torch.testing.assert_close(of_key[:, 3:], (centres(key_grid) - torch.tensor([2, 4])) / 6)  # from the middle


class Direct(ParabolicPE):
    """Adds the paper's bias for all pairs."""
    factors = PositionEncoding.factors

    def bias(self, q: Tensor, index: int, grid: Grid, key_grid: Grid) -> Tensor:
        return paper(self, q, index, grid, key_grid)


@float64
@pytest.mark.parametrize('padding', [None, 'exact'])
@pytest.mark.parametrize('build', [partial(PyramidCPVT, NARROW), partial(PyramidCPVT, NARROW, sr_mode='pool'),
                                   partial(CPVT, dict(embed_dims=24, depth=2, num_heads=3), num_register_tokens=2)])
def test_backbones_compute_the_same_as_with_the_papers_bias(build: Build, padding: str | None) -> None:
    folded, direct = (outspoken(build, padding=padding, position_encoding=dict(type=cls))
                      for cls in (ParabolicPE, Direct))
    direct.load_state_dict(folded.state_dict())
    images, results = torch.randn(3, 3, 70, 50), []
    for model in (folded, direct):
        outputs = model(images, [(70, 50), (31, 50), (70, 9)] if padding else None)
        sum(out.sin().sum() for out in outputs).backward()
        results.append([*outputs, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)  # offsets of pooled keys are made in float32


@pytest.mark.parametrize(('kwargs', 'words'), [
    (dict(num_parabolas=0), ('num_parabolas is 0, but must be an int of at least 1',)),
    (dict(reach=0), ('reach is 0, but must be a number above 0',)),
    (dict(trainable=1), ('trainable is 1, but must be False or True',))])
def test_bad_values_are_named(kwargs: dict, words: tuple[str, ...]) -> None:
    assert_named(ValueError, words, ParabolicPE, STAGE, **kwargs)
