import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cpvt_lab.running import COLUMNS
from cpvt_lab.steps import Setting
from tests.conftest import MASK_RCNN
from tests.tools.conftest import read_rows

TOOL = 'analysis_tools/benchmark.py'


@pytest.fixture
def benchmark(run_tool: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the tool with small models, twice each; its output folder is `tmp_path`."""
    monkeypatch.setattr('cpvt_lab.running.SIDES', dict(cpu=(64,)))

    def run(*args: object) -> str:
        return run_tool(TOOL, *args, '--arch', 'nano', '--threads', 1, '--rounds', 2, '--out-dir', tmp_path)

    return run


@pytest.mark.slow
def test_measures_backbones_and_goes_on_from_what_is_there(benchmark: Callable[..., str], tmp_path: Path,
                                                          capsys: pytest.CaptureFixture,
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
    assert (tmp_path / 'plot.png').read_bytes().startswith(b'\x89PNG')
    printed = capsys.readouterr().out
    assert '- mmseg:heads=3: mmseg:heads=3 cannot be built' in printed and 'Growth' not in printed
    assert (tmp_path / 'table.md').read_text().startswith('- arch: nano\n- drop_path_rate: 0.2\n')
    recipe = json.loads((tmp_path / 'results.json').read_text())['recipe']
    assert set(recipe) >= {'arch', 'device', 'machine', 'torch', 'rounds', 'candidates'}
    assert "candidates.1 = 'mmseg', not 'pvt'" in benchmark(candidates[0], 'pvt', '--sizes', '64x96')

    measured: list[int] = []

    def measure_group(subject: object, candidates: list, setting: Setting, *rest: object) -> dict[str, dict]:
        measured.append(setting.height)
        values = dict(vars(setting), device='cpu', min_s=9., median_s=9., memory_mb=100.)
        return {str(one): {**dict.fromkeys(COLUMNS), **values, 'candidate': str(one)} for one in candidates}

    monkeypatch.setattr('cpvt_lab.running.measure_group', measure_group)
    assert benchmark(*candidates, '--sizes', '64x96', 128, '--modes', 'train') == ''
    assert measured == [128]
    rows = read_rows(tmp_path / 'results.csv')
    assert rows[:3] == [row, peer, missing] and len(rows) == 6
    assert 'Growth, as a power of the number of pixels' in capsys.readouterr().out


@pytest.mark.slow
def test_measures_whole_models(benchmark: Callable[..., str], tmp_path: Path) -> None:
    assert benchmark('pvt', '--config', MASK_RCNN, '--sizes', 64, '--modes', 'train') == ''
    row, = read_rows(tmp_path / 'results.csv')
    assert float(row['memory_mb']) > 30 and float(row['gflops']) > 0.5 and not row['max_abs_diff']
    assert f'- config: {MASK_RCNN}' in (tmp_path / 'table.md').read_text()
