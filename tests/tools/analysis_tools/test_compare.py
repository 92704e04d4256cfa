import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from tests.conftest import UPERNET, toy_overrides
from tests.tools.conftest import read_rows

TOOL = 'analysis_tools/compare.py'
STUDY = f"""
config = '{UPERNET}'
variants = dict(
    none=dict(options={{'model.backbone.position_encoding': None}}),
    PEG=dict(options={{'model.backbone.position_encoding': dict(type='PEG')}}))
tests = {{f'{{size}} px': {{'test_dataloader.dataset.pipeline.1.scale': (size, size)}} for size in (32, 64)}}
metrics = ['mIoU']
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / 'study.py'
    path.write_text(STUDY)
    return path


@pytest.fixture
def compare(run_tool: Callable[..., str], toy_shapes: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs the tool on two small images at a time for two iterations; its work dir is `tmp_path`."""
    options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2})

    def run(*args: object, **more: object) -> str:
        return run_tool(TOOL, '--jobs', 1, *args, '--work-dir', tmp_path, '--cfg-options',
                        *(f'{key}={value}' for key, value in {**options, **more}.items()))

    return run


@pytest.mark.slow
def test_trains_and_tests_each_variant_and_goes_on_from_what_is_there(compare: Callable[..., str], study: Path,
                                                                      tmp_path: Path) -> None:
    assert compare(study, '--seeds', 0) == ''
    rows = read_rows(tmp_path / 'results.csv')
    assert [(row['variant'], row['seed'], row['test']) for row in rows] == [
        ('none', '0', '32 px'), ('none', '0', '64 px'), ('PEG', '0', '32 px'), ('PEG', '0', '64 px')]
    assert all(0 <= float(row['mIoU']) <= 100 and float(row['seconds_per_iteration']) > 0 for row in rows)
    # A PEG has ten parameters a channel in each stage.
    assert int(rows[2]['parameters']) - int(rows[0]['parameters']) == 10 * sum([32, 64, 128, 192])
    assert (tmp_path / 'results.md').read_text().startswith(
        '| variant | backbone, M params | s / iteration | mIoU, 32 px | mIoU, 64 px |')
    assert (tmp_path / 'results.png').read_bytes().startswith(b'\x89PNG')
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.pth')}
    assert sorted(path.parts[-3] for path in trained) == ['none', 'peg']
    encoding = Config.fromfile(next((tmp_path / 'none/seed_0').glob('upernet*.py'))).model.backbone.position_encoding
    assert encoding is None

    results = tmp_path / 'peg/seed_0/results.json'
    content = json.loads(results.read_text())
    backbone, checkpoint, *tests = content['records']
    assert (backbone, checkpoint, len(tests)) == ('backbone', 'checkpoint', 2)
    del content['records'][tests[1]]
    results.write_text(json.dumps(content))
    study.write_text(STUDY.replace('(32, 64)', '(32, 64, 96)'))
    assert compare(study, '--seeds', 0) == ''
    again = read_rows(tmp_path / 'results.csv')
    assert [row for row in again if row['test'] != '96 px'] == rows
    assert len(again) == 6
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.pth')} == trained

    assert compare(study, '--only', 'PEG', '--seeds', 0, **{'optim_wrapper.optimizer.lr': 0.5}).startswith(
        f'error: {results} has results with optim_wrapper.optimizer.lr = ')
    study.write_text(STUDY.replace("['mIoU']", "['mAP']"))
    assert compare(study, '--only', 'PEG', '--seeds', 0).startswith(
        "error: 'mAP' of the study is not a metric of its tests: choose from aAcc, mIoU")


@pytest.mark.slow
def test_an_error_of_a_run_ends_all_with_its_sentence(compare: Callable[..., str], study: Path, tmp_path: Path) -> None:
    error = compare(study, '--only', 'none', **{'train_dataloader.dataset.data_root': tmp_path / 'nowhere'})
    assert error.startswith(f'error: {tmp_path}/nowhere') and 'does not exist' in error
