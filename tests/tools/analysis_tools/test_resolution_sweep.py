import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from cpvt_lab import sweep
from cpvt_mm import PyramidCPVT, engine
from cpvt_mm.engine import load_config
from tests.conftest import MASK_RCNN, UPERNET, Trained

TOOL = 'analysis_tools/resolution_sweep.py'
SLIDE = ('--crop-size', 32, 48, '--stride', 16, 48)


CONFIGS = {'mmdet': MASK_RCNN, 'mmseg': UPERNET}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A file in the place of a checkpoint, where no test runs."""
    path = tmp_path / 'weights.pth'
    path.write_bytes(b'weights')
    return path


@pytest.fixture
def run(run_tool: Callable[..., str], checkpoint: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs the tool on the toy model of a library; its work dir is `tmp_path`."""
    return lambda scope, *args: run_tool(TOOL, CONFIGS[scope], checkpoint, '--work-dir', tmp_path, *args)


@pytest.fixture
def run_trained(run_tool: Callable[..., str], trained: dict[str, Trained], tmp_path: Path) -> Callable[..., str]:
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


@pytest.fixture
def tested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """In the place of all tests, whose metric is the width: their scales."""
    scales: list[tuple[int, int]] = []

    def test(cfg: Config, checkpoint: str, hooks: object) -> dict[str, float]:
        scales.append(cfg.test_dataloader.dataset.pipeline[1].scale)
        return {'mIoU': float(scales[-1][0]), 'aAcc': 1.}

    monkeypatch.setattr(sweep, 'test', test)
    return scales


def read_results(folder: Path) -> list[dict[str, str]]:
    with open(folder / 'results.csv') as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_segmentor_whole_and_in_windows(run_trained: Callable[..., str], inputs: list,
                                          trained: dict[str, Trained], tmp_path: Path,
                                          capsys: pytest.CaptureFixture) -> None:
    assert run_trained('mmseg', '--sizes', 64, 96, '--mode', 'whole', 'slide', *SLIDE) == ''
    assert '4/4' in capsys.readouterr().out  # tests
    rows = read_results(tmp_path)
    slide = 'slide 32x48 by 16x48'
    assert [(row['mode'], row['size']) for row in rows] == [
        ('whole', '64'), ('whole', '96'), (slide, '64'), (slide, '96')]
    # The four images are not square.
    assert [max(size) for size in inputs[:8]] == 4 * [64] + 4 * [96]
    windows = inputs[8:]
    assert len(windows) > 16 and max(height for height, _ in windows) == 32 and max(width for _, width in windows) == 48
    assert (tmp_path / 'results.md').read_text().splitlines()[0] == '| metric | 64 px | 96 px |'
    assert (tmp_path / 'results.png').read_bytes().startswith(b'\x89PNG')

    config, checkpoint = trained['mmseg']
    cfg = load_config(config, {'test_dataloader.dataset.pipeline.1.scale': (96, 96)}, str(tmp_path / 'other'))
    assert engine.test(cfg, checkpoint)['mIoU'] == float(rows[1]['mIoU'])


@pytest.mark.slow
def test_a_detector_at_a_rectangle(run_trained: Callable[..., str], inputs: list, tmp_path: Path) -> None:
    assert run_trained('mmdet', '--sizes', 64, '96x48') == ''
    row, other = read_results(tmp_path)
    assert (row['size'], other['size']) == ('64', '96x48') and 'mode' not in row
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} < set(row)
    # Padded to a multiple of 32, the longer side is at most 96 and the shorter 48, however the image lies.
    assert [max(size) for size in inputs[:4]] == 4 * [64]
    assert all(max(size) <= 96 and min(size) <= 64 for size in inputs[4:]) and max(max(size) for size in inputs) == 96
    assert [line.split(' | ')[0] for line in (tmp_path / 'results.md').read_text().splitlines()[2:]] == [
        '| coco/bbox_mAP', '| coco/segm_mAP']


def test_goes_on_from_what_is_there(run: Callable[..., str], tested: list, tmp_path: Path) -> None:
    assert run('mmseg', '--sizes', 32, 64) == ''
    assert tested == [(32, 32), (64, 64)]
    assert run('mmseg', '--sizes', 96, 32, 64, '64x128') == ''
    assert tested[2:] == [(64, 128), (96, 96)]
    assert [(row['size'], float(row['mIoU'])) for row in read_results(tmp_path)] == [
        ('32', 32), ('64', 64), ('64x128', 64), ('96', 96)]


def test_the_table_has_all_results_of_the_folder(run: Callable[..., str], tested: list, tmp_path: Path) -> None:
    assert run('mmseg', '--sizes', 64, 96) == ''
    assert run('mmseg', '--sizes', 80, '--mode', 'whole', 'slide', *SLIDE) == ''
    assert len(tested) == 4
    assert (tmp_path / 'results.md').read_text().splitlines() == [
        '| metric | 64 px | 80 px | 96 px |', '|---|---|---|---|', '| mIoU, whole | 64.0 | 80.0 | 96.0 |',
        '| mIoU, slide 32x48 by 16x48 |  | 80.0 |  |']
    assert [row['size'] for row in read_results(tmp_path)] == ['64', '80', '96', '80']


def test_keeps_what_is_done_when_it_is_interrupted(run: Callable[..., str], tested: list, tmp_path: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    test = sweep.test

    def interrupt(cfg: object, *args: object, **kwargs: object) -> dict[str, float]:
        if tested:
            raise KeyboardInterrupt
        return test(cfg, *args, **kwargs)

    monkeypatch.setattr(sweep, 'test', interrupt)
    assert run('mmseg', '--sizes', 32, 64) == 'Interrupted: run the same command again to continue.'
    assert [row['size'] for row in read_results(tmp_path)] == ['32']
    assert list(json.loads((tmp_path / 'results.json').read_text())['records']) == ['32 px, whole']
    monkeypatch.setattr(sweep, 'test', test)
    assert run('mmseg', '--sizes', 32, 64) == ''
    assert tested == [(32, 32), (64, 64)]


@pytest.mark.slow
def test_a_test_that_fails_leaves_the_folder_free(run_trained: Callable[..., str], tested: list,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sweep, 'test', engine.test)
        wrong = 'test_dataloader.dataset.data_prefix.img_path=nowhere'
        assert 'nowhere does not exist' in run_trained('mmseg', '--sizes', 32, '--cfg-options', wrong)
    assert run_trained('mmseg', '--sizes', 32) == ''


def test_refuses_the_folder_of_another_config_or_checkpoint(
        run: Callable[..., str], run_tool: Callable[..., str], checkpoint: Path, tested: list, tmp_path: Path) -> None:
    assert run('mmseg', '--sizes', 32) == ''
    refusal = f'error: {tmp_path}/results.json has results with '
    assert run('mmseg', '--sizes', 32, '--cfg-options', 'model.decode_head.channels=32').startswith(
        f'{refusal}config.model.decode_head.channels = ')
    changed = tmp_path / 'changed.pth'
    changed.write_bytes(checkpoint.read_bytes() + b' ')
    assert run_tool(TOOL, UPERNET, changed, '--work-dir', tmp_path, '--sizes', 64).startswith(
        f'{refusal}checkpoint = ')
    same = tmp_path / 'same.pth'
    same.write_bytes(checkpoint.read_bytes())
    assert run_tool(TOOL, UPERNET, same, '--work-dir', tmp_path, '--sizes', 64) == ''
    assert tested == [(32, 32), (64, 64)]


def test_shows_the_metrics_that_are_asked_for(run: Callable[..., str], tested: list, tmp_path: Path) -> None:
    assert run('mmseg', '--sizes', 32, '--metrics', 'aAcc', 'mIoU') == ''
    assert (tmp_path / 'results.md').read_text().splitlines()[2:] == ['| aAcc, whole | 1.0 |', '| mIoU, whole | 32.0 |']


@pytest.mark.parametrize('before', [[], [(64, 64)]], ids=['at the first result', 'before any test'])
def test_a_misspelt_metric_is_noticed_early(before: list, run: Callable[..., str], tested: list) -> None:
    if before:
        assert run('mmseg', '--sizes', 64) == ''
    error = run('mmseg', '--sizes', 96, 32, '--metrics', 'miou')
    assert error == f"error: 'miou' is not a metric of {UPERNET}: choose from mIoU, aAcc."
    assert tested == (before or [(32, 32)])  # the quickest


@pytest.mark.parametrize('scope, args, words', [
    ('mmseg', ('--sizes', '0'), "size '0' is not an image size"),
    ('mmseg', ('--sizes', 32, '--mode', 'slide'), 'has no crop_size for sliding windows: pass --crop-size HEIGHT'),
    ('mmseg', ('--sizes', 32, '--crop-size', 32, 32), '--crop-size and --stride are for sliding windows, but no'),
    ('mmdet', ('--sizes', 32, '--mode', 'whole'), '--mode whole is for segmentors, but config'),
    ('mmdet', ('--sizes', 32, '--cfg-options', 'test_dataloader.dataset.pipeline.1.type=Pad'), 'has no Resize'),
])
def test_what_a_user_gets_wrong_is_one_sentence(run: Callable[..., str], tested: list, scope: str, args: tuple,
                                                words: str) -> None:
    error = run(scope, *args)
    assert error.startswith('error: ') and words in error and '\n' not in error
    assert tested == []


def test_a_missing_checkpoint_is_named(run_tool: Callable[..., str], tmp_path: Path) -> None:
    assert run_tool(TOOL, UPERNET, tmp_path / 'no.pth', '--work-dir', tmp_path, '--sizes', 32) == (
        f'error: checkpoint {tmp_path}/no.pth does not exist: check the path.')
