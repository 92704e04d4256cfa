from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config
from PIL import Image
from torch import Tensor, nn

from cpvt_mm import CPVT, PyramidCPVT
from lab import equivariance, padding
from lab.equivariance import ENCODINGS, draw_weights, measure, measure_backbone, smooth_noise
from openmmlab_runs.engine import load_config
from tests.conftest import MASK_RCNN, NARROW, UPERNET, build_model, refusal
from tests.pictures import is_drawn
from tests.tools.conftest import Run, read_rows

TOOL = 'analysis_tools/translation_equivariance.py'
SMALL = ('--size', 128, '--shift', 32)
SIZE, SHIFT, MARGIN = 160, 32, 2
PLAIN = dict(embed_dims=24, depth=3, num_heads=2)
BACKBONES = {'plain': lambda **options: CPVT(PLAIN, img_size=SIZE, **options),
             'pyramid': lambda **options: PyramidCPVT(NARROW, img_size=SIZE, **options)}
# The first two know no position at all, relative encodings act in attention only.
EXACT = {'none', 'PEG, k = 1'}
EXACT_WITHOUT_ATTENTION = EXACT | {'rotary', 'relative', 'PEG'}
# All encodings in the plain backbone; in the pyramid one of each kind.
CASES = [*(('plain', encoding) for encoding in ENCODINGS),
         *(('pyramid', encoding) for encoding in ('none', 'learnable 2-D', 'rotary', 'relative', 'PEG'))]


def canvas() -> Tensor:
    return F.pad(smooth_noise(SIZE - 2 * SHIFT, seed=0), (SHIFT,) * 4)


def errors(backbone: str, encoding: str, attention: bool = True) -> equivariance.Equivariance:
    model = BACKBONES[backbone](position_encoding=ENCODINGS[encoding]).eval()
    draw_weights(model, seed=0)
    if not attention:
        equivariance.remove_attention(model)
    return measure_backbone(model, canvas(), SHIFT, MARGIN)


def test_features_that_move_with_the_image_have_no_error() -> None:
    image = F.pad(torch.randn(1, 3, 16, 32), (8,) * 4)
    found = measure(lambda image: F.avg_pool2d(image, 4), image, shift=8, stride=4, margin=0)
    assert found.error == 0 and torch.equal(found.cells, torch.zeros(8, 12))


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


@pytest.mark.parametrize('backbone, encoding', [*CASES, ('pyramid', 'PEG, k = 1')])
def test_attention_makes_positions_inexact_and_tables_are_so_without(backbone: str, encoding: str) -> None:
    error, without_attention = (errors(backbone, encoding, attention).error for attention in (True, False))
    assert error <= 1e-4 if encoding in EXACT else error > 1e-2
    assert without_attention <= 1e-5 if encoding in EXACT_WITHOUT_ATTENTION else without_attention > 0.1


@pytest.mark.parametrize('backbone', BACKBONES)
def test_without_attention_the_padding_of_peg_reaches_the_margin_only(backbone: str) -> None:
    cells = errors(backbone, 'PEG', attention=False).cells
    assert cells[MARGIN:-MARGIN, MARGIN:-MARGIN].max() <= 1e-5
    assert min(border.min() for border in (cells[0], cells[-1], cells[:, 0], cells[:, -1])) > 0.1


def test_with_attention_features_move_best_with_peg() -> None:
    found = [errors('plain', encoding).error for encoding in ('PEG', 'sinusoidal 2-D', 'learnable 2-D')]
    assert found == sorted(found)


def test_drawn_weights_differ_in_the_encoding_only() -> None:
    models = [PyramidCPVT(NARROW, position_encoding=ENCODINGS[name]) for name in ('none', 'PEG + learnable 2-D')]
    for model in models:
        draw_weights(model, seed=3)
    none, both = (model.state_dict() for model in models)
    own = both.keys() - none.keys()
    assert own and all('position_encoding' in name for name in own)
    assert all(torch.equal(value, both[name]) for name, value in none.items())
    assert both['stages.3.blocks.0.mlp.fc1.weight'].std() == pytest.approx(64**-0.5, rel=0.05)
    assert both['stages.0.position_encoding.1.table'].std() == pytest.approx(1, rel=0.05)


def test_period_is_that_of_all_grids() -> None:
    other = PyramidCPVT(dict(NARROW, sr_ratios=(1, 3, 1, 1)), out_indices=(1,))
    assert [*map(equivariance.cell_period, (CPVT(PLAIN, patch_size=8), PyramidCPVT(NARROW), other))] == [8, 32, 24]


def test_measures_the_output_of_stride_16_or_the_one_asked_for() -> None:
    model = PyramidCPVT(NARROW).eval()
    assert [measure_backbone(model, canvas(), SHIFT, 1, output).stride for output in (None, 0, 3)] == [16, 4, 32]


def test_a_heat_map_for_each_result_in_one_scale_with_a_frame() -> None:
    cells = torch.rand(6, 8)
    cells[0, 0] = torch.nan
    results = {name: factor * cells for name, factor in [('a: 0.5', 1), ('b', 0), ('c', 2), ('d', 2), ('e', 2)]}
    drawn = [axes for axes in equivariance.error_figure(results, margin=2, title='a title').axes if axes.images]
    assert [axes.get_title() for axes in drawn] == list(results)
    assert len({axes.images[0].norm for axes in drawn}) == 1
    frame, = drawn[0].patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((1.5, 1.5), 4, 2)
    assert not any(axes.patches for axes in equivariance.error_figure(results, 0, '').axes if axes.images)


def test_the_square_of_an_image_is_its_middle(tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    Image.fromarray(image).save(tmp_path / 'a.png')
    assert np.array_equal(equivariance.read_square(tmp_path / 'a.png', 20), image[:, 5:25])


def test_noise_is_of_unit_variance_and_the_same_for_a_seed() -> None:
    noise = smooth_noise(64, seed=1)
    assert noise.shape == (1, 3, 64, 64)
    assert noise.mean().abs() < 1e-5 and (noise.std() - 1).abs() < 1e-5
    assert torch.equal(noise, smooth_noise(64, seed=1)) and not torch.equal(noise, smooth_noise(64, seed=2))
    assert noise.diff(dim=3).std() < 0.5  # neighbours are alike


@pytest.mark.slow
def test_compares_encodings_with_random_weights(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'new/figure.png'
    assert run_tool(TOOL, '--backbone', 'PyramidCPVT', '--arch', 'nano', *SMALL, '--out', out) == ''
    rows = {row['encoding']: row for row in read_rows(out.with_suffix('.csv'))}
    assert list(rows) == list(ENCODINGS)
    assert float(rows['PEG']['error_without_attention']) <= 1e-5 < 1e-3 < float(rows['PEG']['error'])
    assert float(rows['learnable 2-D']['error_without_attention']) > 0.1
    table = out.with_suffix('.md').read_text()
    assert table in capsys.readouterr().out
    assert 'PyramidCPVT-nano, features of stride 16: a picture moves by 32 pixels on a canvas of 128 x 128' in table
    assert table.count('\n| ') == len(ENCODINGS) + 1
    assert sorted(path.name for path in out.parent.iterdir()) == ['figure.csv', 'figure.md', 'figure.png']
    assert is_drawn(out)


@pytest.fixture
def few_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools compare these only, to save time."""
    monkeypatch.setattr(equivariance, 'ENCODINGS', {name: ENCODINGS[name] for name in ('none', 'PEG')})


@pytest.mark.slow
@pytest.mark.usefixtures('few_encodings')
def test_seed_settles_everything(run_tool: Run, tmp_path: Path) -> None:
    texts = []
    for seed in (1, 1, 2):
        assert run_tool(TOOL, UPERNET, *SMALL, '--seed', seed, '--out', tmp_path / 'figure.png') == ''
        texts.append((tmp_path / 'figure.csv').read_text())
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.usefixtures('few_encodings')
def test_an_encoding_of_the_config_comes_first(run_tool: Run, tmp_path: Path) -> None:
    assert run_tool(TOOL, UPERNET, '--cfg-options', 'model.backbone.position_encoding.type=PEG',
                    'model.backbone.position_encoding.kernel_size=5', *SMALL, '--out', tmp_path / 'figure.png') == ''
    assert [row['encoding'] for row in read_rows(tmp_path / 'figure.csv')] == ['of the config', 'none', 'PEG']


def test_measures_a_checkpoint_with_its_own_encoding_on_a_photograph(run_tool: Run, tmp_path: Path) -> None:
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 130, 3), np.uint8)).save(tmp_path / 'image.png')
    words = (TOOL, UPERNET, '--checkpoint', checkpoint := tmp_path / 'weights.pth', *SMALL)
    torch.save(build_model(load_config(UPERNET)).state_dict(), checkpoint)
    assert run_tool(*words, '--image', tmp_path / 'image.png', '--out', tmp_path / 'figure.png') == ''
    row, = read_rows(tmp_path / 'figure.csv')
    assert row['encoding'] == 'of the checkpoint' and float(row['error_without_attention']) <= 1e-5
    message = run_tool(*words, '--cfg-options', 'model.backbone.position_encoding.type=RotaryPE')
    assert message.startswith(f'error: checkpoint {checkpoint} does not fit') and 'left over' in message


class Brightness(nn.Module):
    """Two maps: each cell's own pixels, and these with the mean of the whole batch's image."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        cells = F.avg_pool2d(x, 4)
        return cells, cells + x.mean(dim=(2, 3), keepdim=True)


@pytest.fixture
def images() -> tuple[Tensor, Tensor]:
    """One, and a larger neighbour in the batch."""
    return padding.draw_image((50, 70), 0), padding.draw_image((96, 128), 1)


def test_a_backbone_that_sees_the_padding_and_one_that_does_not(images: tuple[Tensor, Tensor]) -> None:
    own, global_ = padding.measure(Brightness(), *images)
    assert own.error == own.max_abs == 0 and own.cells.shape == (16, 24)
    # The image fills 64 x 96 pixels when it is alone, and 96 x 128 in the batch.
    shift = images[0].sum(dim=(0, 2, 3)) * (1 / (64 * 96) - 1 / (96 * 128))
    assert global_.max_abs == pytest.approx(shift.abs().max().item(), rel=1e-3)
    variation = Brightness()(F.pad(images[0], (0, 26, 0, 14)))[0].var(dim=(2, 3), correction=0).mean().sqrt()
    assert global_.error == pytest.approx((shift.square().mean().sqrt() / variation).item(), rel=1e-3)
    torch.testing.assert_close(global_.cells, torch.full((16, 24), global_.error), rtol=1e-3, atol=0)


def config_of(**backbone: object) -> Config:
    return Config(dict(model=dict(backbone=backbone)))


def test_ours_with_the_option_and_without(images: tuple[Tensor, Tensor]) -> None:
    cfg = config_of(type='cpvt_mm.PyramidCPVT', arch=NARROW)
    exact, plain = (padding.build_backbone(cfg, padding=option) for option in ('exact', None))
    assert max(difference.max_abs for difference in padding.measure(exact, *images)) < 1e-4
    assert min(difference.error for difference in padding.measure(plain, *images)) > 0.1
    assert all(map(torch.equal, exact.parameters(), plain.parameters()))


def test_a_stock_backbone_needs_no_pretrained_weights_and_what_cannot_be_built_is_a_sentence() -> None:
    weights = dict(type='Pretrained', checkpoint='torchvision://resnet18')
    model = padding.build_backbone(config_of(type='mmdet.ResNet', depth=18, init_cfg=weights))
    assert not model.training and 'Pretrained' not in str(model.init_cfg)
    told = refusal(padding.build_backbone, config_of(type='cpvt_mm.PyramidCPVT', arch='huge'))
    assert told.startswith('the cpvt_mm.PyramidCPVT of config ') and ' cannot be built: ' in told
    assert 'has no model.backbone' in refusal(padding.build_backbone, Config(dict(model=dict())))
    told = refusal(padding.build_backbone, config_of(type='cpvt_mm.PyramidCPVT', arch='nano', in_channels=1))
    assert told.startswith('in_channels of the backbone is 1, but this needs a backbone for RGB images')
    told = refusal(padding.build_backbone, config_of(type='cpvt_mm.CPVT', out_type='cls_token'))
    assert told.startswith("out_type of the backbone is 'cls_token', but must be featmap")


@pytest.mark.usefixtures('few_encodings')
def test_padding_of_ours_with_each_encoding(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'new/padding.png'
    assert run_tool('analysis_tools/padding_difference.py', MASK_RCNN, '--encodings', '--image', '33x60', '--neighbour',
                    '64x96', '--rounds', 1, '--out', out) == ''
    rows = read_rows(out.with_suffix('.csv'))
    exact = [row for row in rows if row['backbone'].endswith("padding='exact'")]
    assert [row['backbone'] for row in rows] == [
        f'PyramidCPVT, {name}{option}' for name in ('none', 'PEG') for option in ('', ", padding='exact'")]
    assert all(float(row['max_abs']) < 1e-4 for row in exact)
    assert all(float(row['error_3']) > 0.05 for row in rows if row not in exact)
    assert all(float(row['forward_s']) > 0 and float(row['step_s']) > 0 for row in rows)
    assert is_drawn(out)
    assert out.with_suffix('.md').read_text() in capsys.readouterr().out
