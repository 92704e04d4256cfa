"""A checkpoint tested at several sizes."""
from pathlib import Path

import pytest
from mmengine.config import Config

from cpvt_mm import PyramidCPVT
from lab import sweep
from lab.sweep import Mode, Windows, resolve_mode
from openmmlab_runs import engine
from openmmlab_runs.engine import load_config
from tests.conftest import UPERNET, Trained
from tests.pictures import is_drawn
from tests.tools.conftest import Run, read_rows

TOOL = 'analysis_tools/resolution_sweep.py'
SLIDE = ('--mode', 'whole', 'slide', '--crop-size', 32, 48, '--stride', 16, 48)
WINDOWS = dict(mode='slide', crop_size=(32, 64), stride=(16, 64))


@pytest.mark.parametrize('test_cfg, arguments, mode', [
    (dict(), (), 'whole'), (WINDOWS, ('whole',), 'whole'),
    (WINDOWS, ('slide', None, [8, 8]), Windows((32, 64), (8, 8))),
    (dict(mode='whole'), ('slide', [32, 32], [32, 32]), Windows((32, 32), (32, 32)))])
def test_a_mode_is_the_configs_but_for_what_is_given(test_cfg: dict, arguments: tuple, mode: Mode) -> None:
    assert resolve_mode(load_config(UPERNET, {'model.test_cfg': dict(test_cfg, _delete_=True)}), *arguments) == mode


@pytest.mark.slow
def test_a_segmentor_whole_and_in_windows(run_tool: Run, trained: dict[str, Trained], tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []  # by the backbone
    forward = PyramidCPVT.forward
    monkeypatch.setattr(PyramidCPVT, 'forward', lambda self, x: seen.append(tuple(x.shape[2:])) or forward(self, x))
    config, checkpoint = trained['mmseg']
    assert run_tool(TOOL, config, checkpoint, '--work-dir', tmp_path, '--sizes', 64, 96, *SLIDE) == ''
    rows = read_rows(tmp_path / 'results.csv')
    assert [(row['mode'], row['size']) for row in rows] == [
        (mode, size) for mode in ('whole', 'slide 32x48 by 16x48') for size in ('64', '96')]
    # The four images are not square.
    assert [max(size) for size in seen[:8]] == 4 * [64] + 4 * [96]
    assert len(seen[8:]) > 16 and tuple(map(max, *seen[8:])) == (32, 48)
    cfg = load_config(config, {'test_dataloader.dataset.pipeline.1.scale': (96, 96)}, str(tmp_path / 'other'))
    assert engine.test(cfg, checkpoint)['mIoU'] == float(rows[1]['mIoU'])


def test_goes_on_from_what_is_there_and_shows_all_results_of_the_folder(run_tool: Run, tmp_path: Path,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    tested: list[tuple[int, int]] = []  # scales

    def test(cfg: Config, checkpoint: str) -> dict[str, float]:
        tested.append(cfg.test_dataloader.dataset.pipeline[1].scale)
        return {'mIoU': float(tested[-1][0]), 'aAcc': 1.}

    def run(*args: object) -> str:
        return run_tool(TOOL, UPERNET, checkpoint, '--work-dir', tmp_path, '--sizes', *args)

    monkeypatch.setattr(sweep, 'test', test)
    (checkpoint := tmp_path / 'weights.pth').write_bytes(b'weights')
    assert run(96, 32, '--metrics', 'miou') == f"error: 'miou' is not a metric of {UPERNET}: choose from mIoU, aAcc."
    assert run(96, 32, '64x128') == '' and tested == [(32, 32), (64, 128), (96, 96)]
    assert run(32, *SLIDE, '--metrics', 'aAcc', 'mIoU') == '' and len(tested) == 4
    assert (tmp_path / 'results.md').read_text().splitlines() == [
        '| metric | 32 px | 64x128 px | 96 px |', '|---|---|---|---|',
        '| aAcc, whole | 1.0 | 1.0 | 1.0 |', '| aAcc, slide 32x48 by 16x48 | 1.0 |  |  |',
        '| mIoU, whole | 32.0 | 64.0 | 96.0 |', '| mIoU, slide 32x48 by 16x48 | 32.0 |  |  |']
    assert is_drawn(tmp_path / 'results.png')
    refusal = f'error: {tmp_path}/results.json has results with '
    assert run(32, '--cfg-options', 'model.decode_head.channels=32').startswith(
        f'{refusal}config.model.decode_head.channels = ')
    checkpoint.write_bytes(b'others')
    assert run(64).startswith(f'{refusal}checkpoint = ') and len(tested) == 4
