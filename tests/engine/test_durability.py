"""Training that is killed with SIGKILL, again and again, and resumed each time, ends as if nothing had happened."""
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from cpvt_mm.checkpoints.reading import read_checkpoint

from .attempts import attempt, detector, die_at_event, die_half_written, segmentor


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('OMP_NUM_THREADS', '1')


def assert_equal(first: Any, second: Any) -> None:
    """Bitwise, for what training goes on from."""
    for key in ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers'):
        torch.testing.assert_close(first.get(key), second.get(key), rtol=0, atol=0)
    assert all(first['meta'][key] == second['meta'][key] for key in ('iter', 'epoch', 'seed'))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_file() and path.suffix != '.py')


def test_a_segmentor_that_is_killed_at_random_moments(toy_shapes: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / 'whole', tmp_path / 'parts'
    assert attempt(segmentor, toy_shapes, whole)
    chance = random.Random(0)
    kills = [dict(trap=die_half_written, number=chance.randint(0, 2)), dict(seconds=chance.uniform(0.5, 4))]
    kills += [dict(trap=die_at_event, number=chance.randint(10, 60)) for _ in range(6)]
    chance.shuffle(kills)
    for kill in kills:
        ended = attempt(segmentor, toy_shapes, parts, **kill)
        print(kill, ended, files(parts) if parts.exists() else '')
    assert ended or attempt(segmentor, toy_shapes, parts)
    assert files(parts) == files(whole)
    assert_equal(read_checkpoint(parts / 'iter_8.pth'), read_checkpoint(whole / 'iter_8.pth'))
