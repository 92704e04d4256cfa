"""Formulas of encodings without a convolution: those added to the tokens, and those that act in attention."""
import itertools
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from cpvt_mm import CPVT, MixedRotaryPE, PyramidCPVT, RotaryPE
from cpvt_mm.encodings import LearnablePE, PositionEncoding, RandomFourierPE, RandomTablePE, SinusoidalPE
from cpvt_mm.encodings.resampling import cubic_weights, resample
from cpvt_mm.tokens.grid import Grid, Size
from tests.all_encodings import STAGE, encode
from tests.backbones import NARROW
from tests.models.conftest import assert_named

TABLES = (LearnablePE, RandomTablePE)


@pytest.mark.parametrize('cls, kwargs, size, interpolation', [
    *((cls, {}, size, dict(size=size, mode='bicubic')) for cls in TABLES for size in ((4, 6), (9, 7), (1, 1))),
    *((cls, dict(ndim=1), size, dict(size=math.prod(size), mode='linear'))
      for cls in TABLES for size in ((4, 6), (3, 5))),
    (LearnablePE, dict(mode='bilinear'), (9, 7), dict(size=(9, 7), mode='bilinear')),
    # As in DINOv2, with registers and without.
    *((LearnablePE, dict(antialias=True), size, dict(size=size, mode='bicubic', antialias=True))
      for size in ((2, 3), (7, 9))),
    *((LearnablePE, dict(offset=0.1), (rows, columns), dict(scale_factor=((rows + 0.1) / 4, (columns + 0.1) / 6),
                                                            mode='bicubic')) for rows, columns in ((2, 3), (7, 9)))])
def test_a_table_is_added_resampled(cls: type, kwargs: dict, size: Size, interpolation: dict) -> None:
    encoding = cls(STAGE, **kwargs)
    table = encoding.table.detach()
    assert table.shape == ((24, 16) if kwargs == dict(ndim=1) else (4, 6, 16))
    resampled = F.interpolate(table.movedim(-1, 0)[None], align_corners=False, **interpolation)
    added = encode(encoding, torch.zeros(1, *size, 16), -1)
    torch.testing.assert_close(added, resampled.movedim(1, -1).view_as(added), atol=1e-6, rtol=1e-4)
    if table.dim() == 3:  # recorded code takes tables of other sizes, and keeps those of the right one
        traced = torch.jit.trace(lambda x: resample(table, x.shape[:2], **kwargs), torch.zeros(5, 5))
        torch.testing.assert_close(traced(torch.zeros(size)), added[0], atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(traced(torch.zeros(4, 6)), table, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize('size', [(1, 1), (3, 2), (5, 40), (37, 9)])
def test_cells_beyond_the_border_of_a_table_are_copies_of_the_last_ones(size: Size) -> None:
    """Against `F.grid_sample`, with its gradient; in float64, both round a dozen products of numbers below 10."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(5, 9, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    places = [(torch.arange(count) + 0.5) * length / (count + 0.1) - 0.5 for count, length in zip(
        size, table.shape, strict=False)]
    rows, columns = (cubic_weights(x.double(), length) for x, length in zip(places, table.shape, strict=False))
    y, x = (2 * (place.double() + 0.5) / length - 1 for place, length in zip(places, table.shape, strict=False))
    grid = torch.stack(torch.broadcast_tensors(x, y[:, None]), dim=-1)[None]
    expected = F.grid_sample(table.movedim(-1, 0)[None], grid, 'bicubic', 'border', align_corners=False)[0]
    sampled = torch.einsum('yh,xw,hwc->cyx', rows, columns, table)
    torch.testing.assert_close(sampled, expected, atol=1e-13, rtol=0)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    gradients = [torch.autograd.grad(values, table, weights)[0] for values in (sampled, expected)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


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


def test_load_state_dict_resamples_a_learnt_table_of_another_grid_and_refuses_others() -> None:
    other, same, flat = (LearnablePE(STAGE, **kwargs) for kwargs in (dict(grid=7), {}, dict(grid=7, ndim=1)))
    weights = other.state_dict()
    for encoding in (same, flat):
        encoding.load_state_dict(weights)
    assert torch.equal(same.table, resample(other.table, (4, 6))) and weights['table'].shape == (7, 7, 16)
    assert torch.equal(flat.table, other.table.flatten(0, 1))
    for encoding, table in ((RandomTablePE(STAGE), RandomTablePE(STAGE, grid=7)), (same, flat)):
        words = f'shape {tuple(table.table.shape)} (table)', 'the model has one of shape (4, 6, 16)'
        assert_named(ValueError, words, encoding.load_state_dict, table.state_dict(), strict=False)


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


@pytest.mark.parametrize('cell', [1, 2])
@pytest.mark.parametrize('form', ['axial', 'dinov3'])
def test_turns_each_cell_by_the_place_of_its_centre_or_its_place_in_the_image(form: str, cell: int) -> None:
    vectors, index, sides = torch.randn(1, 2, 15, 8), torch.arange(15), torch.tensor([3 * cell, 5 * cell])
    # A key covers `cell` tokens a side, of which the first is token `cell` times its own index.
    places = cell * torch.stack([index // 5, index % 5], dim=1) + (cell - 1) / 2
    # Axial: a half for y, a half for x, each pairing channel k with k + a quarter as parts of a complex number.
    # Of DINOv3: a half for the first, a half for the second parts, of which one half is for y, the other for x.
    parts = -2 if form == 'axial' else -3
    places = places if form == 'axial' else 2 * math.pi * (2 * (places + 0.5) / sides - 1)
    points = torch.complex(*vectors.unflatten(-1, (2, 2, 2)).unbind(parts))
    turned = points * torch.exp(1j * places[..., None] / 50**(torch.arange(2) / 2))
    expected = torch.stack([turned.real, turned.imag], dim=parts).flatten(-3)
    grid, queries = Grid(*sides.tolist()), torch.randn(1, 2, 15 * cell**2, 8)
    _, actual = RotaryPE(STAGE, form=form, temperature=50.).qk(queries, vectors, 0, grid, Grid(3, 5, cell, cell))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-4)


def angles(encoding: RotaryPE) -> torch.Tensor:
    """The angles of queries, which keys must have, too, `(rows, columns, row's and column's)`, at the highest rate."""
    ones = torch.cat([torch.ones(1, 2, 64, 4), torch.zeros(1, 2, 64, 4)], dim=-1)
    q, k = encoding.qk(ones, ones, 0, Grid(8, 8), Grid(8, 8))
    assert torch.equal(q, k)
    return torch.atan2(q[0, 0, :, 4::2], q[0, 0, :, :4:2]).unflatten(0, (8, 8))


@pytest.mark.parametrize('name, value', [('shift', 0.05), ('jitter', 1.1), ('rescale', 1.1)])
def test_training_moves_and_scales_places(name: str, value: float) -> None:
    encoding = RotaryPE(STAGE, form='dinov3', **{name: value}).eval()
    places = angles(encoding)[3:5, 3:5]  # those near the middle have angles within half a turn
    encoding.train()
    drawn = torch.stack([angles(encoding)[3:5, 3:5] for _ in range(40)])
    change = (drawn - places) / (2 * math.pi) if name == 'shift' else (drawn / places).log()
    bound = value if name == 'shift' else math.log(value)
    assert change.std(dim=(1, 2)).max() < 1e-3  # the same in all places
    assert bound / 2 < change.max() < 1.001 * bound and -1.001 * bound < change.min() < -bound / 2
    of_axes = (change[..., 0] - change[..., 1]).abs().max()
    assert (of_axes < 1e-4) == (name == 'rescale')


@pytest.mark.parametrize('cell', [1, 2])
def test_mixed_frequencies_turn_by_row_and_column_together(cell: int) -> None:
    vectors, index, encoding = torch.randn(2, 2, 15, 8), torch.arange(15.), MixedRotaryPE(STAGE)
    points = torch.complex(*vectors.chunk(2, dim=-1))  # the halves of a head's channels
    y, x = (cell * place + (cell - 1) / 2 for place in (index // 5, index % 5))
    of_rows, of_columns = encoding.frequencies[1]  # of the block, (heads, C / 2) each
    angles = torch.einsum('p,hc->hpc', y, of_rows) + torch.einsum('p,hc->hpc', x, of_columns)
    turned = torch.view_as_real(points * torch.polar(torch.ones_like(angles), angles))
    _, actual = encoding.qk(vectors, vectors, 1, Grid(3, 5), Grid(3, 5, cell, cell))
    torch.testing.assert_close(actual, turned.movedim(-1, -2).flatten(-2), atol=1e-5, rtol=1e-4)
