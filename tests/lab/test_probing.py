"""A linear map reads row and column where the answer is known."""
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import Dinov2Config, Dinov2Model

from cpvt_mm import CPVT, PyramidCPVT
from lab.commands.position_probe import Reading, layers, measure
from lab.features import draw_weights, smooth_noise
from tests.backbones import NARROW
from tests.pictures import is_drawn
from tests.tools.conftest import Run, read_rows

# More channels than cells, so that each row of a random table can be told from all others.
SIDE, PLAIN = 64, dict(embed_dims=96, depth=2, num_heads=2)


def convolutions(padding_mode: str) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 32, 4, stride=4), *(
        part for _ in range(6) for part in (nn.Conv2d(32, 32, 5, padding=2, padding_mode=padding_mode), nn.ReLU())))


def probe(model: nn.Module, sides: tuple[int, ...] = (SIDE,)) -> list[Reading]:
    draw_weights(model, seed=0)
    return measure(model, smooth_noise, sides, count=24)


def test_zeros_at_the_border_tell_places_and_circular_padding_does_not() -> None:
    zeros, circular = (probe(convolutions(mode))[-1] for mode in ('zeros', 'circular'))
    assert min(zeros.row - zeros.row_margin, zeros.column - zeros.column_margin) > 0.3
    assert max(circular.row - circular.row_margin, circular.column - circular.column_margin) < 0.05
    assert all(0 < margin < 0.2 for margin in (circular.row_margin, circular.column_margin))


def test_rows_are_told_from_columns() -> None:
    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, torch.arange(x.shape[2])[:, None].expand_as(x[:, :1])], dim=1)

    for side in (16, 40):  # of the larger ones, some pixels are drawn
        reading, = measure(Rows(), smooth_noise, [side], count=24)
        assert reading.row > 0.999 and reading.row_margin < 1e-3 and abs(reading.column) < 0.1


@pytest.mark.parametrize(('encoding', 'least', 'most'), [
    (dict(type='LearnablePE'), 0.7, 1.), (dict(type='SinusoidalPE'), 0.9, 1.),
    (None, -1., 0.05), (dict(type='PEG', kernel_size=1), -1., 0.05)], ids=str)
def test_encodings_tell_what_they_know_at_each_size(encoding: dict | None, least: float, most: float) -> None:
    readings = probe(CPVT(dict(PLAIN, patch_size=8), img_size=SIDE, position_encoding=encoding), (SIDE, 2 * SIDE))
    assert [(reading.side, reading.layer) for reading in readings] == [(64, 0), (64, 1), (128, 0), (128, 1)]
    for reading in readings:
        assert least <= reading.row <= most and least <= reading.column <= most


@pytest.mark.parametrize(('build', 'count'), [
    (partial(PyramidCPVT, NARROW), 4), (partial(timm.create_model, 'test_vit', dynamic_img_size=True), 6),
    (partial(timm.create_model, 'test_resnet'), 5),
    (lambda: Dinov2Model(Dinov2Config(hidden_size=24, num_hidden_layers=3, num_attention_heads=2, patch_size=8)), 3)])
def test_layers_of_ours_timm_and_transformers_are_maps(build, count: int) -> None:
    maps = layers(build().eval(), torch.randn(1, 3, 64, 64))
    assert len(maps) == count
    assert all(x.dim() == 4 and x.shape[0] == 1 and x.shape[2] == x.shape[3] > 1 for x in maps)


def test_the_tool_writes_a_figure_and_a_table(run_tool: Run, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / 'new/probe.png'
    assert run_tool('lab position_probe', 'cpvt-tiny', 'timm:test_vit', '--size', 64, '--scales', 1, 2, '--count', 8,
                    '--out', out) == ''
    assert [(row['model'], row['side']) for row in read_rows(out.with_suffix('.csv'))] == [
        (model, side) for model, depth in (('cpvt-tiny', 12), ('timm:test_vit', 6)) for side in ('64', '128')
        for _ in range(depth)]
    assert is_drawn(out) and out.with_suffix('.md').read_text() in capsys.readouterr().out
