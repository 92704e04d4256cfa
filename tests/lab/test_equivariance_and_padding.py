"""Translation equivariance, and the difference that padding makes: the measures, and their tools."""
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import Config

from cpvt_mm import CPVT, PyramidCPVT
from lab import equivariance, padding
from lab.equivariance import ENCODINGS, draw_weights, measure, measure_backbone, smooth_noise
from openmmlab_runs.engine import load_config
from tests.conftest import MASK_RCNN, NARROW, UPERNET, build_model
from tests.pictures import is_drawn, random_image
from tests.tools.conftest import Run, read_rows

TOOL = 'analysis_tools/translation_equivariance.py'
SIZE, SHIFT = 160, 32
BACKBONES = {'plain': lambda encoding: CPVT(dict(embed_dims=24, depth=3, num_heads=2), img_size=SIZE,
                                            position_encoding=encoding),
             'pyramid': lambda encoding: PyramidCPVT(NARROW, img_size=SIZE, position_encoding=encoding)}
# The first two know no position at all, relative encodings act in attention only.
EXACT = {'none', 'PEG, k = 1'}
EXACT_WITHOUT_ATTENTION = EXACT | {'rotary', 'relative', 'PEG'}
# All encodings in the plain backbone; in the pyramid one of each kind.
CASES = [*(('plain', encoding) for encoding in ENCODINGS),
         *(('pyramid', encoding) for encoding in ('none', 'learnable 2-D', 'rotary', 'relative', 'PEG'))]


def test_the_error_is_in_units_of_the_variation_between_places() -> None:
    # The features are the column's number, whatever the image: six moves change it by one, the two along a column do
    # not. Of the 8 x 8 cells those count that stay on the canvas.
    column = torch.arange(8.).expand(1, 2, 8, 8)
    changed, unchanged = 2 * 7 * (7 + 8 + 7), 2 * 7 * 8
    variance = torch.arange(8.).var(correction=0)
    for scale, offset in ((1, 0), (5, 100)):
        found = measure(lambda image, a=scale, b=offset: a * column + b, torch.zeros(1, 3, 32, 32), 4, 4, margin=0)
        assert found.error == pytest.approx((changed / (changed + unchanged) / variance.item())**0.5, rel=1e-5)


@pytest.mark.parametrize('backbone, encoding', CASES)
def test_attention_makes_positions_inexact_and_tables_are_so_without(backbone: str, encoding: str) -> None:
    model = BACKBONES[backbone](ENCODINGS[encoding]).eval()
    draw_weights(model, seed=0)
    canvas = F.pad(smooth_noise(SIZE - 2 * SHIFT, seed=0), (SHIFT,) * 4)
    error = measure_backbone(model, canvas, SHIFT, margin=2).error
    equivariance.remove_attention(model)
    without_attention = measure_backbone(model, canvas, SHIFT, margin=2).error
    assert error <= 1e-4 if encoding in EXACT else error > 1e-2
    assert without_attention <= 1e-5 if encoding in EXACT_WITHOUT_ATTENTION else without_attention > 0.1


@pytest.fixture
def few_encodings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools compare these only, to save time."""
    monkeypatch.setattr(equivariance, 'ENCODINGS', {name: ENCODINGS[name] for name in ('none', 'PEG')})


@pytest.mark.usefixtures('few_encodings')
def test_equivariance_of_encodings_and_of_a_checkpoint_on_a_photograph(run_tool: Run, tmp_path: Path) -> None:
    out, weights = tmp_path / 'new/figure.png', tmp_path / 'weights.pth'
    words = TOOL, UPERNET, '--size', 128, '--shift', 32, '--out', out
    assert run_tool(*words, '--cfg-options', 'model.backbone.position_encoding.type=PEG',
                    'model.backbone.position_encoding.kernel_size=5') == ''
    assert [row['encoding'] for row in read_rows(out.with_suffix('.csv'))] == ['of the config', 'none', 'PEG']
    torch.save(build_model(load_config(UPERNET)).state_dict(), weights)
    random_image(tmp_path / 'image.png', 90, 130)
    assert run_tool(*words, '--checkpoint', weights, '--image', tmp_path / 'image.png') == ''
    row, = read_rows(out.with_suffix('.csv'))
    assert row['encoding'] == 'of the checkpoint' and float(row['error_without_attention']) <= 1e-5
    assert is_drawn(out) and '| of the checkpoint |' in out.with_suffix('.md').read_text()


def test_ours_with_the_option_and_without() -> None:
    cfg = Config(dict(model=dict(backbone=dict(type='cpvt_mm.PyramidCPVT', arch=NARROW))))
    images = padding.draw_image((50, 70), 0), padding.draw_image((96, 128), 1)
    exact, plain = (padding.build_backbone(cfg, padding=option) for option in ('exact', None))
    assert max(difference.max_abs for difference in padding.measure(exact, *images)) < 1e-4
    assert min(difference.error for difference in padding.measure(plain, *images)) > 0.1
    assert all(map(torch.equal, exact.parameters(), plain.parameters()))


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
    assert is_drawn(out) and out.with_suffix('.md').read_text() in capsys.readouterr().out
