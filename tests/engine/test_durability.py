"""Training that is killed or finds a full disk, and is resumed, ends as if nothing had happened."""
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config

from cpvt_mm.weights.reading import read_checkpoint

from .attempts import attempt, detector, die_at_step, die_half_written, limit_files, segmentor

pytestmark = pytest.mark.slow

KILLED = -signal.SIGKILL


@pytest.fixture(scope='module', autouse=True)
def one_thread() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv('OMP_NUM_THREADS', '1')
        yield


def same(first: Any, second: Any) -> bool:
    """Whether two values, nested or not, are equal to the bit."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return list(first) == list(second) and all(same(first[key], second[key]) for key in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def assert_same(first: Path, second: Path) -> None:
    """Compares all that two checkpoints hold, but for texts and times."""
    first, second = read_checkpoint(first), read_checkpoint(second)
    assert len(first['state_dict']) > 100
    assert list(first) == list(second)
    for part in set(first) - {'meta', 'message_hub'}:
        assert same(first[part], second[part]), part
    for name in ('train/loss', 'train/lr'):
        values, others = (one['message_hub']['log_scalars'][name]['log_history'] for one in (first, second))
        assert len(values) == first['meta']['iter'] and torch.equal(values, others)


def train_with_kills(cfg: Config, kills: list[dict[str, Any]]) -> None:
    """Trains with kills, as many as it lives to see; after each, but before the first, there is a whole checkpoint."""
    folder = Path(cfg.work_dir)
    for kill in kills:
        status = attempt(cfg, **kill)
        output = Path(folder.parent, 'output.txt').read_text()
        assert status in (0, KILLED), output
        if (folder / 'last_checkpoint').exists():
            read_checkpoint((folder / 'last_checkpoint').read_text())
        # One that is whole, the next, and one that is half written.
        assert len([path for path in folder.glob('*.pth*') if not path.name.startswith('best')]) <= 3
    assert attempt(cfg) == 0
    assert not list(folder.glob('*.tmp'))


def test_a_segmentor_that_is_killed_at_random_moments(toy_shapes: Path, tmp_path: Path) -> None:
    whole, folder = tmp_path / 'whole', tmp_path / 'run'
    assert attempt(segmentor(toy_shapes, whole)) == 0
    train_with_kills(segmentor(toy_shapes, folder), [
        dict(trap=die_at_step, number=16),  # the best checkpoint is written, but the other does not yet know of it
        dict(trap=die_at_step, number=7), dict(seconds=3), dict(trap=die_half_written, number=1),
        dict(trap=die_at_step, number=12)])
    names, expected = (sorted(path.name for path in work_dir.glob('*.pth')) for work_dir in (folder, whole))
    assert names == expected and names[1:] == ['iter_8.pth']
    for name in names:  # the best, too
        assert_same(whole / name, folder / name)


def test_a_detector_that_is_killed_between_epochs(toy_shapes: Path, tmp_path: Path) -> None:
    assert attempt(detector(toy_shapes, tmp_path / 'whole')) == 0
    train_with_kills(detector(toy_shapes, tmp_path / 'run'), [dict(trap=die_half_written, number=1)])
    assert_same(tmp_path / 'whole/epoch_3.pth', tmp_path / 'run/epoch_3.pth')


def test_a_full_disk_is_a_sentence_and_costs_nothing(toy_shapes: Path, tmp_path: Path) -> None:
    cfg, folder = segmentor(toy_shapes, tmp_path / 'run'), tmp_path / 'run'
    assert attempt(cfg, trap=die_half_written, number=1) == KILLED
    first = (folder / 'iter_2.pth').read_bytes()
    assert attempt(cfg, trap=limit_files, number=len(first) // 2) == 1
    output = (tmp_path / 'output.txt').read_text()
    assert 'Traceback' not in output
    assert output.splitlines()[-1] == (
        f'error: {folder}/iter_4.pth cannot be written (File too large): free space for it, then continue from '
        f'{folder}/iter_2.pth with --resume.')
    # As after the kill.
    assert (folder / 'iter_2.pth').read_bytes() == first
    assert (folder / 'last_checkpoint').read_text() == str(folder / 'iter_2.pth')
    assert not list(folder.glob('*.tmp'))
