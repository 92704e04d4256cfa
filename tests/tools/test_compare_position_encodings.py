import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.config import Config

from tests.conftest import ROOT, toy_overrides

TOOL = 'analysis_tools/compare_position_encodings.py'


@pytest.fixture
def compare(run_tool: Callable[..., str], toy_shapes: Path, tmp_path: Path) -> Callable[..., str]:
    """Runs the tool on two small images at a time for two iterations; its work dir is `tmp_path`."""
    options = toy_overrides(toy_shapes, **{'train_cfg.max_iters': 2, 'train_cfg.val_interval': 2})

    def run(*args: object, **more: object) -> str:
        return run_tool(TOOL, '--jobs', 1, *args, '--work-dir', tmp_path, '--cfg-options',
                        *(f'{key}={value}' for key, value in {**options, **more}.items()))

    return run


def read_results(folder: Path) -> list[dict[str, str]]:
    with open(folder / 'results.csv') as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_trains_and_tests_each_encoding_and_goes_on_from_what_is_there(compare: Callable[..., str],
                                                                      tmp_path: Path) -> None:
    assert compare('--only', 'none', 'PEG', '--seeds', 0, '--sizes', 32, 64) == ''
    rows = read_results(tmp_path)
    assert [(row['encoding'], row['seed'], row['size']) for row in rows] == [
        ('none', '0', '32'), ('none', '0', '64'), ('PEG', '0', '32'), ('PEG', '0', '64')]
    assert all(0 <= float(row['mIoU']) <= 100 for row in rows)
    assert (tmp_path / 'results.md').read_text().startswith('| encoding | 32 px | 64 px |')
    assert (tmp_path / 'results.png').read_bytes().startswith(b'\x89PNG')
    trained = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.pth')}
    assert sorted(path.parts[-3] for path in trained) == ['none', 'peg']
    encoding = Config.fromfile(next((tmp_path / 'none/seed_0').glob('segformer*.py'))).model.backbone.position_encoding
    assert encoding is None

    results = tmp_path / 'peg/seed_0/results.json'
    content = json.loads(results.read_text())
    assert list(content['records']) == ['checkpoint', '32', '64']
    del content['records']['64']
    results.write_text(json.dumps(content))
    assert compare('--only', 'none', 'PEG', '--seeds', 0, '--sizes', 32, 64, 96) == ''
    again = read_results(tmp_path)
    assert [row for row in again if row['size'] != '96'] == rows
    assert len(again) == 6
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob('*.pth')} == trained

    assert compare('--only', 'PEG', '--seeds', 0, **{'optim_wrapper.optimizer.lr': 0.5}).startswith(
        f'error: {results} holds results with optim_wrapper.optimizer.lr = ')
    assert compare('--only', 'PEG', '--seeds', 0, '--sizes', 32, '--metric', 'mAP').startswith(
        "error: 'mAP' is not a metric of")


def test_the_default_encodings_are_those_of_the_study() -> None:
    encodings = Config.fromfile(ROOT / 'configs/_base_/position_encodings.py').to_dict()['encodings']
    assert encodings['none'] is None
    assert encodings['PEG + learnable 2-D'] == [dict(type='PEG'), dict(type='LearnablePE')]
    assert [c['type'] for name, c in encodings.items() if isinstance(c, dict)] == [
        'LearnablePE', 'SinusoidalPE', 'RandomFourierPE', 'RotaryPE', 'RelativePE', 'PEG']


@pytest.mark.parametrize('args, words', [
    (('--only', 'GEP'), "'GEP' is not among the encodings of"),
    (('--encodings', 'nowhere.py'), 'nowhere.py cannot be read'),
    (('--jobs', 0), '--jobs is 0, but must be at least 1'),
    (('--sizes', 64, -5), '--sizes is -5, but must be at least 1'),
    (('--cfg-options', 'model.backbone.img_size=0'), 'img_size is 0'),
    (('--cfg-options', 'test_dataloader.dataset.pipeline.1.type=Pad'), 'has no Resize'),
    (('--encodings', ROOT / 'configs/_base_/mmseg_runtime.py'), 'encodings of'),
])
def test_what_a_user_gets_wrong_is_one_sentence(compare: Callable[..., str], args: tuple, words: str) -> None:
    error = compare(*args)
    assert error.startswith('error: ') and words in error


def test_names_that_would_share_a_folder_are_refused(compare: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / 'encodings.py'
    file.write_text("encodings = {'a b': None, 'a-b': None}")
    assert "'a b' and 'a-b' of" in compare('--encodings', file)


@pytest.mark.slow
def test_an_error_of_a_run_ends_all_with_its_sentence(compare: Callable[..., str], tmp_path: Path) -> None:
    error = compare('--only', 'none', '--seeds', 0, 1, **{'train_dataloader.dataset.data_root': tmp_path / 'nowhere'})
    assert error.startswith(f'error: {tmp_path}/nowhere') and 'does not exist' in error
