from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from cpvt_lab.equivariance import (
    ENCODINGS,
    Equivariance,
    cell_period,
    draw_weights,
    error_figure,
    measure,
    measure_backbone,
    read_square,
    remove_attention,
    smooth_noise,
)
from cpvt_mm import CPVT, PyramidCPVT
from cpvt_mm.errors import UserError
from tests.conftest import NARROW

SIZE, SHIFT, MARGIN = 160, 32, 2
PLAIN = dict(embed_dims=24, depth=3, num_heads=2)
BACKBONES = {'plain': lambda **options: CPVT(PLAIN, img_size=SIZE, **options),
             'pyramid': lambda **options: PyramidCPVT(NARROW, img_size=SIZE, **options)}
# Relative encodings act in attention only.
EXACT_WITHOUT_ATTENTION = {'none', 'rotary', 'relative', 'PEG', 'PEG, k = 1'}
# They know no position at all.
EXACT = {'none', 'PEG, k = 1'}
# All encodings in the plain backbone; in the pyramid one of each kind.
CASES = [*(('plain', encoding) for encoding in ENCODINGS),
         *(('pyramid', encoding) for encoding in ('none', 'learnable 2-D', 'rotary', 'relative', 'PEG'))]


def canvas() -> Tensor:
    return F.pad(smooth_noise(SIZE - 2 * SHIFT, seed=0), (SHIFT,) * 4)


def result(backbone: str, encoding: str, attention: bool = True) -> Equivariance:
    torch.manual_seed(0)
    model = BACKBONES[backbone](position_encoding=ENCODINGS[encoding]).eval()
    draw_weights(model, seed=0)
    if not attention:
        remove_attention(model)
    return measure_backbone(model, canvas(), SHIFT, MARGIN)


def test_features_that_move_with_the_image_have_no_error() -> None:
    image = F.pad(torch.randn(1, 3, 16, 32), (8,) * 4)
    found = measure(lambda image: F.avg_pool2d(image, 4), image, shift=8, stride=4, margin=0)
    assert found.error == 0
    assert torch.equal(found.cells, torch.zeros(8, 12))


def test_the_error_is_in_units_of_the_variation_between_places() -> None:
    # The features are the column's number, whatever the image: six moves change it by one, the two along a column do
    # not. Of the 8 x 8 cells those count that stay on the canvas.
    column = torch.arange(8.).expand(1, 2, 8, 8)
    changed, unchanged = 2 * 7 * (7 + 8 + 7), 2 * 7 * 8
    variance = torch.arange(8.).var(correction=0)
    for scale, offset in ((1, 0), (5, 100)):
        found = measure(lambda image, a=scale, b=offset: a * column + b, torch.zeros(1, 3, 32, 32), 4, 4, margin=0)
        assert found.error == pytest.approx((changed / (changed + unchanged) / variance.item())**0.5, rel=1e-5)


def test_the_map_shows_where() -> None:
    bump = torch.zeros(1, 1, 10, 12)
    bump[0, 0, 4, 6] = 1
    cells = measure(lambda image: bump, torch.zeros(1, 3, 40, 48), shift=8, stride=4, margin=1).cells
    around = torch.zeros(10, 12, dtype=torch.bool)
    around[2:7:2, 4:9:2] = True  # the place itself, and what moves there by two cells
    assert torch.equal(cells > 0, around)


@pytest.mark.parametrize(('backbone', 'encoding'), [*CASES, ('pyramid', 'PEG, k = 1')])
def test_attention_makes_inexact_whatever_knows_positions_and_tables_are_inexact_without(backbone: str, encoding: str,
                                                                                         ) -> None:
    error, without_attention = (result(backbone, encoding, attention).error for attention in (True, False))
    assert error <= 1e-4 if encoding in EXACT else error > 1e-2
    assert without_attention <= 1e-5 if encoding in EXACT_WITHOUT_ATTENTION else without_attention > 0.1


@pytest.mark.parametrize('backbone', BACKBONES)
def test_without_attention_the_padding_of_peg_reaches_the_margin_only(backbone: str) -> None:
    cells = result(backbone, 'PEG', attention=False).cells
    assert cells[MARGIN:-MARGIN, MARGIN:-MARGIN].max() <= 1e-5
    for border in (cells[0], cells[-1], cells[:, 0], cells[:, -1]):
        assert border.min() > 0.1


def test_with_attention_features_move_best_with_peg() -> None:
    errors = [result('plain', encoding).error for encoding in ('PEG', 'sinusoidal 2-D', 'learnable 2-D')]
    assert errors == sorted(errors)


def test_drawn_weights_differ_in_the_encoding_only() -> None:
    weights = []
    for encoding in ('none', 'PEG + learnable 2-D'):
        model = PyramidCPVT(NARROW, position_encoding=ENCODINGS[encoding])
        draw_weights(model, seed=3)
        weights.append(model.state_dict())
    none, both = weights
    own = both.keys() - none.keys()
    assert own and all('position_encoding' in name for name in own)
    for name, value in none.items():
        assert torch.equal(value, both[name]), name
    assert both['stages.3.blocks.0.mlp.fc1.weight'].std() == pytest.approx(64**-0.5, rel=0.05)
    assert both['stages.0.position_encoding.1.table'].std() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(('build', 'period'), [
    (lambda: CPVT(PLAIN, patch_size=8), 8),
    (lambda: PyramidCPVT(NARROW), 32),
    (lambda: PyramidCPVT(dict(NARROW, sr_ratios=(1, 3, 1, 1)), out_indices=(1,)), 24),
])
def test_period_is_that_of_all_grids(build: Callable[[], CPVT | PyramidCPVT], period: int) -> None:
    assert cell_period(build()) == period


def test_measures_the_output_of_stride_16_or_the_one_asked_for() -> None:
    model = PyramidCPVT(NARROW).eval()
    assert [measure_backbone(model, canvas(), SHIFT, 1, output).stride for output in (None, 0, 3)] == [16, 4, 32]


@pytest.mark.parametrize(('options', 'arguments', 'message'), [
    (dict(out_type='gap'), {}, "out_type of the backbone is 'gap', but must be featmap"),
    ({}, dict(output=1), 'output 1 does not exist: choose one from 0 to 0'),
    ({}, dict(shift=24), 'the shift of 24 pixels is not a multiple of 16 pixels'),
    ({}, dict(margin=4), 'a margin of 4 cells of 16 pixels leaves no cell to compare in a canvas of 160 x 160'),
    ({}, dict(margin=-1), 'a margin of -1 cells'),
    ({}, dict(image=torch.zeros(1, 3, 160, 152)), 'the canvas of 152 pixels is not a multiple of 16 pixels'),
])
def test_what_cannot_be_measured_is_refused(options: dict, arguments: dict, message: str) -> None:
    arguments = dict(dict(image=canvas(), shift=SHIFT, margin=MARGIN), **arguments)
    with pytest.raises(UserError, match=message):
        measure_backbone(CPVT(PLAIN, **options).eval(), **arguments)


def test_a_heat_map_for_each_result_in_one_scale_with_a_frame() -> None:
    cells = torch.rand(6, 8)
    cells[0, 0] = torch.nan
    results = {name: factor * cells for name, factor in [('a: 0.5', 1), ('b', 0), ('c', 2), ('d', 2), ('e', 2)]}
    figure = error_figure(results, margin=2, title='a title')
    drawn = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in drawn] == list(results)
    assert len({axes.images[0].norm for axes in drawn}) == 1
    frame, = drawn[0].patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((1.5, 1.5), 4, 2)
    assert not any(axes.patches for axes in error_figure(results, margin=0, title='').axes if axes.images)


def test_the_square_of_an_image_is_its_middle(tmp_path: Path) -> None:
    image, path = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8), tmp_path / 'a.png'
    Image.fromarray(image).save(path)
    assert np.array_equal(read_square(path, 20), image[:, 5:25])


def test_noise_is_of_unit_variance_and_the_same_for_a_seed() -> None:
    noise = smooth_noise(64, seed=1)
    assert noise.shape == (1, 3, 64, 64)
    assert noise.mean().abs() < 1e-5 and (noise.std() - 1).abs() < 1e-5
    assert torch.equal(noise, smooth_noise(64, seed=1)) and not torch.equal(noise, smooth_noise(64, seed=2))
    assert noise.diff(dim=3).std() < 0.5  # neighbours are alike
