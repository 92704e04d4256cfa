import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from cpvt_lab import sweep
from cpvt_mm import PyramidCPVT, engine
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError
from tests.conftest import UPERNET, Trained
from tests.tools.conftest import read_rows

Run = Callable[..., str]
TOOL = 'analysis_tools/resolution_sweep.py'
SLIDE = ('--crop-size', 32, 48, '--stride', 16, 48)


@pytest.fixture
def run_trained(run_tool: Run, trained: dict[str, Trained], tmp_path: Path) -> Run:
    """Runs the tool on the trained toy model of a library; its work dir is `tmp_path`."""
    return lambda scope, *args: run_tool(TOOL, *trained[scope], '--work-dir', tmp_path, *args)


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Heights and widths of what the backbone sees."""
    seen: list[tuple[int, int]] = []
    forward = PyramidCPVT.forward

    def spy(self: PyramidCPVT, x: object) -> object:
        seen.append(tuple(x.shape[2:]))
        return forward(self, x)

    monkeypatch.setattr(PyramidCPVT, 'forward', spy)
    return seen


@pytest.mark.slow
def test_a_segmentor_whole_and_in_windows(run_trained: Run, inputs: list, trained: dict[str, Trained], tmp_path: Path,
                                          capsys: pytest.CaptureFixture) -> None:
    assert run_trained('mmseg', '--sizes', 64, 96, '--mode', 'whole', 'slide', *SLIDE) == ''
    assert '4/4' in capsys.readouterr().out  # tests
    rows = read_rows(tmp_path / 'results.csv')
    slide = 'slide 32x48 by 16x48'
    assert [(row['mode'], row['size']) for row in rows] == [
        ('whole', '64'), ('whole', '96'), (slide, '64'), (slide, '96')]
    # The four images are not square.
    assert [max(size) for size in inputs[:8]] == 4 * [64] + 4 * [96]
    windows = inputs[8:]
    assert len(windows) > 16 and max(height for height, _ in windows) == 32 and max(width for _, width in windows) == 48

    config, checkpoint = trained['mmseg']
    cfg = load_config(config, {'test_dataloader.dataset.pipeline.1.scale': (96, 96)}, str(tmp_path / 'other'))
    assert engine.test(cfg, checkpoint)['mIoU'] == float(rows[1]['mIoU'])


@pytest.mark.slow
def test_a_detector_at_a_rectangle(run_trained: Run, inputs: list, tmp_path: Path) -> None:
    assert run_trained('mmdet', '--sizes', 64, '96x48') == ''
    row, other = read_rows(tmp_path / 'results.csv')
    assert (row['size'], other['size']) == ('64', '96x48') and 'mode' not in row
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} < set(row)
    # Padded to a multiple of 32, the longer side is at most 96 and the shorter 48, however the image lies.
    assert [max(size) for size in inputs[:4]] == 4 * [64]
    assert all(max(size) <= 96 and min(size) <= 64 for size in inputs[4:]) and max(max(size) for size in inputs) == 96
    assert [line.split(' | ')[0] for line in (tmp_path / 'results.md').read_text().splitlines()[2:]] == [
        '| coco/bbox_mAP', '| coco/segm_mAP']


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Takes the place of all tests, whose metric is the width: their scales."""
    scales: list[tuple[int, int]] = []

    def test(cfg: Config, checkpoint: str, hooks: object) -> dict[str, float]:
        scales.append(cfg.test_dataloader.dataset.pipeline[1].scale)
        return {'mIoU': float(scales[-1][0]), 'aAcc': 1.}

    monkeypatch.setattr(sweep, 'test', test)
    return scales


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / 'weights.pth'
    path.write_bytes(b'weights')
    return path


@pytest.fixture
def run(run_tool: Run, checkpoint: Path, tested: list, tmp_path: Path) -> Run:
    """Runs the tool on the toy segmentor, whose tests are replaced; its work dir is `tmp_path`."""
    return lambda *args: run_tool(TOOL, UPERNET, checkpoint, '--work-dir', tmp_path, *args)


def test_goes_on_from_what_is_there_and_shows_all_results_of_the_folder(run: Run, tested: list, tmp_path: Path) -> None:
    assert run('--sizes', 32, 64) == ''
    assert tested == [(32, 32), (64, 64)]
    assert run('--sizes', 96, 32, 64, '64x128') == ''
    assert tested[2:] == [(64, 128), (96, 96)]
    assert run('--sizes', 32, '--mode', 'whole', 'slide', *SLIDE, '--metrics', 'aAcc', 'mIoU') == ''
    assert len(tested) == 5
    assert (tmp_path / 'results.md').read_text().splitlines() == [
        '| metric | 32 px | 64 px | 64x128 px | 96 px |', '|---|---|---|---|---|',
        '| aAcc, whole | 1.0 | 1.0 | 1.0 | 1.0 |', '| aAcc, slide 32x48 by 16x48 | 1.0 |  |  |  |',
        '| mIoU, whole | 32.0 | 64.0 | 64.0 | 96.0 |', '| mIoU, slide 32x48 by 16x48 | 32.0 |  |  |  |']
    assert (tmp_path / 'results.png').read_bytes().startswith(b'\x89PNG')
    assert [(row['size'], float(row['mIoU'])) for row in read_rows(tmp_path / 'results.csv')] == [
        ('32', 32), ('64', 64), ('64x128', 64), ('96', 96), ('32', 32)]


def test_keeps_what_is_done_when_it_is_interrupted(run: Run, tested: list, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    test = sweep.test

    def interrupt(cfg: object, *args: object, **kwargs: object) -> dict[str, float]:
        if tested:
            raise KeyboardInterrupt
        return test(cfg, *args, **kwargs)

    monkeypatch.setattr(sweep, 'test', interrupt)
    assert run('--sizes', 32, 64) == 'Interrupted: run the same command again to continue.'
    assert [row['size'] for row in read_rows(tmp_path / 'results.csv')] == ['32']
    assert list(json.loads((tmp_path / 'results.json').read_text())['records']) == ['32 px, whole']
    monkeypatch.setattr(sweep, 'test', test)
    assert run('--sizes', 32, 64) == ''
    assert tested == [(32, 32), (64, 64)]


def test_a_test_that_fails_leaves_the_folder_free(run: Run, tested: list, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*args: object, **kwargs: object) -> dict[str, float]:
        raise UserError('it is told to.')

    with monkeypatch.context() as patch:
        patch.setattr(sweep, 'test', fail)
        assert run('--sizes', 32, '--cfg-options', 'model.decode_head.channels=32') == 'error: it is told to.'
    assert run('--sizes', 32) == ''


def test_refuses_the_folder_of_another_config_or_checkpoint(run: Run, checkpoint: Path, tested: list, tmp_path: Path
                                                            ) -> None:
    assert run('--sizes', 32) == ''
    refusal = f'error: {tmp_path}/results.json has results with '
    assert run('--sizes', 32, '--cfg-options', 'model.decode_head.channels=32').startswith(
        f'{refusal}config.model.decode_head.channels = ')
    checkpoint.write_bytes(b'others')
    assert run('--sizes', 64).startswith(f'{refusal}checkpoint = ')
    checkpoint.write_bytes(b'weights')  # the same, though written anew
    assert run('--sizes', 64) == ''
    assert tested == [(32, 32), (64, 64)]


@pytest.mark.parametrize('before', [[], [(64, 64)]], ids=['at the first result', 'before any test'])
def test_a_misspelt_metric_is_noticed_early(before: list, run: Run, tested: list) -> None:
    if before:
        assert run('--sizes', 64) == ''
    error = run('--sizes', 96, 32, '--metrics', 'miou')
    assert error == f"error: 'miou' is not a metric of {UPERNET}: choose from mIoU, aAcc."
    assert tested == (before or [(32, 32)])  # the fastest
