"""The benchmark's command line, and its tables and plots."""
import json
from pathlib import Path
from typing import Any

import pytest

from lab.benchmark_report import exponent, plot, to_markdown
from lab.running import COLUMNS
from lab.steps import Setting
from tests.conftest import MASK_RCNN, ROOT
from tests.pictures import is_drawn
from tests.tools.conftest import Run, read_rows


@pytest.fixture
def benchmark(run_tool: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the tool with small models, twice each; its output folder is `tmp_path`."""
    monkeypatch.setattr('lab.running.SIDES', dict(cpu=(64,)))
    options = ('--arch', 'nano', '--threads', 1, '--rounds', 2, '--out-dir', tmp_path)
    return lambda *args: run_tool('analysis_tools/benchmark.py', *args, *options)


@pytest.mark.slow
def test_measures_backbones_and_goes_on(benchmark: Run, tmp_path: Path, capsys: pytest.CaptureFixture,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = ('cpvt_mm:with_cp=True', 'mmseg', 'mmseg:heads=3')
    assert benchmark(*candidates, '--sizes', '64x96', '--modes', 'train') == ''
    row, peer, missing = read_rows(tmp_path / 'results.csv')
    assert (row['candidate'], row['mode'], row['height'], row['width']) == (candidates[0], 'train', '64', '96')
    for one in (row, peer):
        assert float(one['min_s']) <= float(one['median_s'])
        assert float(one['memory_mb']) > 7 and float(one['gflops']) > 0.1 and float(one['share_of_peak']) > 0
        assert float(one['max_abs_diff']) < 1e-4
    assert row['gflops'] == peer['gflops']
    assert missing['failure'].startswith('mmseg:heads=3 cannot be built (TypeError:') and not missing['min_s']
    assert is_drawn(tmp_path / 'plot.png')
    printed = capsys.readouterr().out
    assert '- mmseg:heads=3: mmseg:heads=3 cannot be built' in printed and 'Growth' not in printed
    assert (tmp_path / 'table.md').read_text().startswith('- arch: nano\n- drop_path_rate: 0.2\n')
    recipe = json.loads((tmp_path / 'results.json').read_text())['recipe']
    assert set(recipe) >= {'arch', 'device', 'machine', 'torch', 'rounds', 'candidates'}
    assert "candidates.1 = 'mmseg', not 'pvt'" in benchmark(candidates[0], 'pvt', '--sizes', '64x96')

    heights: list[int] = []

    def measure_group(subject: object, candidates: list, setting: Setting, *rest: object) -> dict[str, dict]:
        heights.append(setting.height)
        return {str(one): measured(str(one), setting.height, 1., **vars(setting)) for one in candidates}

    monkeypatch.setattr('lab.running.measure_group', measure_group)
    assert benchmark(*candidates, '--sizes', '64x96', 128, '--modes', 'train') == ''
    assert heights == [128]
    rows = read_rows(tmp_path / 'results.csv')
    assert rows[:3] == [row, peer, missing] and len(rows) == 6
    assert 'Growth, as a power of the number of pixels' in capsys.readouterr().out


@pytest.mark.slow
def test_measures_whole_models(benchmark: Run, tmp_path: Path) -> None:
    assert benchmark('pvt', '--config', MASK_RCNN, '--sizes', 64, '--modes', 'train') == ''
    row, = read_rows(tmp_path / 'results.csv')
    assert float(row['memory_mb']) > 30 and float(row['gflops']) > 0.5 and not row['max_abs_diff']
    assert f'- config: {MASK_RCNN}' in (tmp_path / 'table.md').read_text()


@pytest.mark.slow
def test_measures_the_variants_of_a_study_and_says_which_attention_is_fused(benchmark: Run, tmp_path: Path) -> None:
    study = tmp_path / 'study.py'
    encodings = [None, dict(type='RelativePE'), dict(type='LookHerePE')]
    study.write_text(f"config = 'a.py'\nmetrics = ['mIoU']\nvariants = {{str(one): dict(options={{"
                     f"'model.backbone.position_encoding': one}}) for one in {encodings}}}")
    assert benchmark('cpvt_mm:arch=nano', '--study', study, '--sizes', '64x96', '--modes', 'train') == ''
    rows = read_rows(tmp_path / 'results.csv')
    assert [one['candidate'] for one in rows] == [f'cpvt_mm:arch=nano,position_encoding={one}' for one in encodings]
    assert [one['fused'] for one in rows] == ['8 of 8', '0 of 8', '8 of 8']


@pytest.mark.parametrize('study, words', [
    ('architecture_camvid', 'whose variants have several configs: choose one'),
    ('padding_nuclei', "whose variant 'padding=None' sets train_dataloader.dataset.pipeline.2.crop_size: choose one")])
def test_a_study_of_more_than_the_backbone_is_refused(benchmark: Run, study: str, words: str) -> None:
    assert words in benchmark('--study', ROOT / f'configs/_base_/studies/{study}.py')


def row(candidate: str, side: int, **values: Any) -> dict[str, Any]:
    shared = dict(mode='train', batch_size=2, dtype='fp32', threads=1, device='cpu', height=side, width=side)
    return {**dict.fromkeys(COLUMNS), **shared, 'candidate': candidate, **values}


def measured(candidate: str, side: int, power: float, **values: Any) -> dict[str, Any]:
    seconds = 1e-6 * (side * side)**power
    return row(candidate, side, **dict(dict(min_s=seconds, median_s=2 * seconds, memory_mb=2. * side * side / 1000,
                                            gflops=10., gemm_gflops_per_s=100., share_of_peak=0.5,
                                            fused='8 of 8'), **values))


ROWS = [*(measured('ours', side, 1.) for side in (224, 448, 896)), measured('theirs', 224, 1.5, max_abs_diff=1.5e-6),
        measured('theirs', 448, 1.5), row('theirs', 896, failure='out of memory'),
        row('absent', 224, failure='absent cannot be built.'), row('absent', 448, failure='absent cannot be built.')]
BF16 = [dict(one, dtype='bf16') for one in ROWS]


def test_the_exponent_is_the_slope_of_logarithms() -> None:
    ours, theirs = ROWS[:3], ROWS[3:6]
    assert exponent(ours, 'min_s') == pytest.approx(1.)
    assert exponent(theirs, 'min_s') == pytest.approx(1.5)
    assert exponent(theirs, 'memory_mb') == pytest.approx(1.)
    assert exponent([*ours, measured('ours', 224, 1.)], 'max_abs_diff') is None
    assert exponent([ours[0], ours[0]], 'min_s') is None
    oblong = [dict(ours[0], height=112, width=448, min_s=1.), dict(ours[0], height=448, width=448, min_s=8.)]
    assert exponent(oblong, 'min_s') == pytest.approx(1.5)


def test_the_table_tells_all() -> None:
    lines = to_markdown(ROWS).splitlines()
    assert lines[0] == '### train, batch of 2, fp32, 1 thread'
    assert lines[2].startswith('GEMM peak: 100.0 GFLOP/s')
    cells = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines if line.startswith('| ')]
    first = next(line for line in cells if line[:2] == ['224 x 224', 'theirs'])
    assert first == ['224 x 224', 'theirs', '11.24', '22.48', '0.089', '224.00x', '100', '1.00x', '10.0', '50%',
                     '1.5e-06', '', '8 of 8']
    large = next(line for line in cells if line[:2] == ['896 x 896', 'theirs'])
    assert large[2:] == ['out of memory', *[''] * 10]
    assert ['ours', '1.00', '1.00'] in cells and ['theirs', '1.50', '1.00'] in cells
    assert not any('absent' in line for line in map(str, cells))
    assert lines.count('- absent: absent cannot be built.') == 1


def test_settings_that_differ_have_tables_one_size_has_no_growth_and_failures_alone_no_table() -> None:
    headings = [line for line in to_markdown(ROWS + BF16).splitlines() if line.startswith('#')]
    assert headings == ['### train, batch of 2, fp32, 1 thread', '### train, batch of 2, bf16, 1 thread']
    assert 'Growth' not in to_markdown(ROWS[:1])
    assert to_markdown(ROWS[-2:]).splitlines() == [
        '### train, batch of 2, fp32, 1 thread', '', 'Not measured:', '', '- absent: absent cannot be built.']


def test_the_plot_has_time_and_memory_for_each_mode_on_log_axes() -> None:
    figure = plot(ROWS + [dict(one, mode='forward') for one in ROWS], 'a title')
    assert [axes.get_title() for axes in figure.axes] == ['train', 'train', 'forward', 'forward']
    assert all(axes.get_xscale() == axes.get_yscale() == 'log' for axes in figure.axes)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    assert list(lines) == ['ours', 'theirs']
    assert list(lines['theirs'].get_xdata()) == [224, 448]
    assert list(lines['ours'].get_ydata()) == [one['min_s'] for one in ROWS[:3]]
    assert list(figure.axes[1].get_lines()[0].get_ydata()) == [one['memory_mb'] for one in ROWS[:3]]
    labels = [line.get_label() for line in plot(ROWS[:3] + BF16[:3], '').axes[0].get_lines()]
    assert labels == ['ours, fp32', 'ours, bf16']  # what varies
