import json
from hashlib import sha256
from pathlib import Path
from unittest.mock import Mock

import pytest
from mmengine.config import Config, ConfigDict

from cpvt_mm import PyramidCPVT
from lab import sweep
from lab.sweep import Mode, Size, Windows, resolve_mode, set_mode, set_test_size
from openmmlab_runs import engine
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import UserError
from tests.conftest import MASK_RCNN, ROOT, UPERNET, Trained, refusal
from tests.pictures import is_drawn
from tests.tools.conftest import Run, read_rows

TOOL = 'analysis_tools/resolution_sweep.py'
SLIDE = ('--crop-size', 32, 48, '--stride', 16, 48)
WINDOWS = dict(mode='slide', crop_size=(32, 64), stride=(16, 64))


def test_a_line_of_the_table_is_a_curve_and_fractions_have_three_digits() -> None:
    assert sweep.to_markdown({'AP': {'96': 0.25}, 'AR': {'64x32': 0.5, '96': 1.}}).splitlines() == [
        '| metric | 64x32 px | 96 px |', '|---|---|---|', '| AP |  | 0.250 |', '| AR | 0.500 | 1.000 |']
    assert sweep.to_markdown({'mIoU': {'96': 25.}}).endswith('| mIoU | 25.0 |\n')


def test_workers_end_with_each_test(tmp_path: Path) -> None:
    assert sweep.Sweep(UPERNET, 'x.pth', tmp_path).load().test_dataloader.persistent_workers is False


def test_sizes_are_read_and_written_width_first() -> None:
    for text, size in (('512', Size(width=512, height=512)), ('1333x800', Size(width=1333, height=800))):
        assert sweep.parse_size(text) == size and str(size) == text


def test_every_resize_of_the_test_pipeline_gets_the_size_and_there_must_be_one() -> None:
    cfg = load_config(MASK_RCNN)
    cfg.test_dataloader.dataset.pipeline.append(ConfigDict(type='mmdet.Resize', scale=(7, 7)))
    set_test_size(cfg, Size(1333, 800))
    assert [transform.get('scale') for transform in cfg.test_dataloader.dataset.pipeline] == [
        None, (1333, 800), None, None, (1333, 800)]
    cfg.test_dataloader.dataset = ConfigDict(type='ConcatDataset', datasets=[])
    assert 'has no Resize' in refusal(set_test_size, cfg, Size(1, 1))


@pytest.mark.parametrize('scale, size', [((1333, 800), Size(1333, 800)), (160, Size(160, 160)), (None, Size(512, 512))])
def test_the_size_of_a_config_is_the_scale_of_its_resize_or_else_512_pixels(scale: object, size: Size) -> None:
    cfg = load_config(MASK_RCNN)
    cfg.test_dataloader.dataset.pipeline[1].scale = scale
    if scale is None:  # it keeps the sizes of images
        cfg = load_config(ROOT / 'configs/nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py')
        assert 'scale' not in cfg.test_dataloader.dataset.pipeline[1]
    assert sweep.get_test_size(cfg) == size


@pytest.mark.parametrize('test_cfg, arguments, mode', [
    (dict(mode='whole'), (), 'whole'), (dict(), (), 'whole'), (WINDOWS, ('whole',), 'whole'),
    (WINDOWS, (), Windows((32, 64), (16, 64))), (WINDOWS, ('slide', None, [8, 8]), Windows((32, 64), (8, 8))),
    (dict(mode='whole'), ('slide', [32, 32], [32, 32]), Windows((32, 32), (32, 32)))])
def test_a_mode_is_the_configs_but_for_what_is_given(test_cfg: dict, arguments: tuple, mode: Mode) -> None:
    assert resolve_mode(load_config(UPERNET, {'model.test_cfg': dict(test_cfg, _delete_=True)}), *arguments) == mode


def test_a_mode_is_set_beside_what_else_there_is() -> None:
    cfg = load_config(UPERNET, {'model.test_cfg.other': 1})
    set_mode(cfg, Windows((32, 64), (16, 64)))
    assert cfg.model.test_cfg == dict(WINDOWS, other=1)
    set_mode(cfg, 'whole')
    assert resolve_mode(cfg) == 'whole'


def test_a_rectangle_stands_where_a_square_of_its_area_does() -> None:
    axes, = sweep.plot({'AP': {'100': 1., '400x100': 3., '300': 2.}, 'AR': {'100': 4.}}, 'value', 'a title').axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ['AP', 'AR'] and axes.get_ylabel() == 'value'
    assert [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines] == [
        ([100, 200, 300], [1, 3, 2]), ([100], [4])]
    assert [label.get_text() for label in axes.get_xticklabels()] == ['100', '400x100', '300']


@pytest.fixture
def run_trained(run_tool: Run, trained: dict[str, Trained], tmp_path: Path) -> Run:
    """Runs the tool on the trained toy model of a library; its work dir is `tmp_path`."""
    return lambda scope, *args: run_tool(TOOL, *trained[scope], '--work-dir', tmp_path, *args)


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Heights and widths of what the backbone sees."""
    seen: list[tuple[int, int]] = []
    forward = PyramidCPVT.forward
    monkeypatch.setattr(PyramidCPVT, 'forward', lambda self, x: seen.append(tuple(x.shape[2:])) or forward(self, x))
    return seen


@pytest.mark.slow
def test_a_segmentor_whole_and_in_windows(run_trained: Run, inputs: list, trained: dict, tmp_path: Path,
                                          capsys: pytest.CaptureFixture) -> None:
    assert run_trained('mmseg', '--sizes', 64, 96, '--mode', 'whole', 'slide', *SLIDE) == ''
    assert '4/4' in capsys.readouterr().out  # tests
    rows = read_rows(tmp_path / 'results.csv')
    assert [(row['mode'], row['size']) for row in rows] == [
        (mode, size) for mode in ('whole', 'slide 32x48 by 16x48') for size in ('64', '96')]
    # The four images are not square.
    assert [max(size) for size in inputs[:8]] == 4 * [64] + 4 * [96]
    windows = inputs[8:]
    assert len(windows) > 16 and tuple(map(max, *windows)) == (32, 48)

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
    assert max(map(max, inputs)) == max(map(max, inputs[4:])) == 96 and max(map(min, inputs[4:])) <= 64
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
def run(run_tool: Run, tested: list, tmp_path: Path) -> Run:
    """Runs the tool on the toy segmentor, whose tests are replaced; its work dir is `tmp_path`."""
    (tmp_path / 'weights.pth').write_bytes(b'weights')
    return lambda *args: run_tool(TOOL, UPERNET, tmp_path / 'weights.pth', '--work-dir', tmp_path, *args)


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
    assert is_drawn(tmp_path / 'results.png')
    assert [(row['size'], float(row['mIoU'])) for row in read_rows(tmp_path / 'results.csv')] == [
        ('32', 32), ('64', 64), ('64x128', 64), ('96', 96), ('32', 32)]


def test_keeps_what_is_done_when_it_is_interrupted(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = Mock(side_effect=[dict(mIoU=32.), KeyboardInterrupt, dict(mIoU=64.)])
    monkeypatch.setattr(sweep, 'test', test)
    assert run('--sizes', 32, 64) == 'Interrupted: run the same command again to continue.'
    assert [row['size'] for row in read_rows(tmp_path / 'results.csv')] == ['32']
    results = json.loads((tmp_path / 'results.json').read_text())
    assert list(results['records']) == ['32 px, whole']
    assert results['recipe']['checkpoint'] == sha256(b'weights').hexdigest()
    assert run('--sizes', 32, 64) == ''
    assert test.call_count == 3
    assert [float(row['mIoU']) for row in read_rows(tmp_path / 'results.csv')] == [32, 64]


def test_a_test_that_fails_leaves_the_folder_free(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, 'test', Mock(side_effect=[UserError('it is told to.'), dict(mIoU=32.)]))
    assert run('--sizes', 32, '--cfg-options', 'model.decode_head.channels=32') == 'error: it is told to.'
    assert run('--sizes', 32) == ''


def test_refuses_the_folder_of_another_config_or_checkpoint(run: Run, tested: list, tmp_path: Path) -> None:
    assert run('--sizes', 32) == ''
    refusal, checkpoint = f'error: {tmp_path}/results.json has results with ', tmp_path / 'weights.pth'
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
