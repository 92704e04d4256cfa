"""Workers of data loaders that lack shared memory, or give no more data, end a run with a sentence."""
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement
from torch.utils.data import DataLoader

from openmmlab_runs.engine import load_config, train, workers
from openmmlab_runs.engine.workers import check_shared_memory, limit_waiting, lost_workers, shared_bytes
from tests.conftest import UPERNET, refusal, toy_overrides

MEGABYTE = torch.zeros(2 ** 20, dtype=torch.uint8)


def test_tensors_are_in_shared_memory_wherever_they_are_in_a_sample() -> None:
    element = BaseDataElement(data=MEGABYTE.clone())
    assert shared_bytes(dict(inputs=MEGABYTE, data_samples=[element])) == 2 ** 21
    assert shared_bytes([MEGABYTE, MEGABYTE]) == 2 ** 20  # the same memory
    assert shared_bytes((np.zeros(9999), 'a', None)) == 0 and shared_bytes([torch.zeros(()), lambda: 0]) == 4096


def loader(workers: int = 2, **more: Any) -> DataLoader:
    return DataLoader([MEGABYTE] * 9, batch_size=4, num_workers=workers, **more)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the number of free megabytes of shared memory."""
    return lambda size: monkeypatch.setattr(shutil, 'disk_usage', Mock(return_value=Mock(free=size * 2 ** 20)))


def test_too_little_shared_memory_is_an_error_before_the_first_batch(
        free: Callable, log: list, monkeypatch: pytest.MonkeyPatch) -> None:
    free(7)
    assert refusal(check_shared_memory, loader(), MEGABYTE, 'train_dataloader') == (
        'train_dataloader: its workers need about 17 MB of shared memory (1 processes x 2 workers x 2 batches x 4.2 MB)'
        ', but /dev/shm has 7 MB: start the container with more (docker run --shm-size 8g), or set '
        'train_dataloader.num_workers or batch_size lower.')
    check_shared_memory(loader(0), MEGABYTE, 'train_dataloader')  # needs none
    free(16)
    check_shared_memory(loader(), MEGABYTE, 'train_dataloader')
    assert log == []
    free(15)
    check_shared_memory(loader(), MEGABYTE, 'train_dataloader')
    assert [level for level, _ in log] == ['WARNING']
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    assert '(2 processes x' in refusal(check_shared_memory, loader(), MEGABYTE, 'train_dataloader')


def test_workers_are_given_up_after_a_time() -> None:
    for one, expected in ((loader(), 600), (loader(timeout=9), 9), (loader(0), 0)):
        limit_waiting(one)
        assert one.timeout == expected


class Hangs:
    """A sample that does not come."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        return time.sleep(1e6)


class Dies(Hangs):

    def __getitem__(self, index: int) -> int:
        os._exit(9)


@pytest.mark.parametrize('dataset, words', [(Hangs(), 'DataLoader timed out after 1 '), (Dies(), 'DataLoader wor')])
def test_what_torch_says_of_them_is_known(dataset: Any, words: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        next(iter(DataLoader(dataset, num_workers=1, timeout=1)))
    assert str(lost_workers(raised.value)).startswith(f'the workers of a data loader give no more data ({words}')
    assert lost_workers(RuntimeError('CUDA error')) is None


@pytest.mark.slow
def test_a_run_ends_if_its_workers_hang(toy_shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, 'LONGEST', 1)
    cfg = load_config(UPERNET, toy_overrides(toy_shapes, **{
        'train_cfg.max_iters': 2, 'train_dataloader.num_workers': 1}), str(tmp_path))
    monkeypatch.setattr('mmengine.dataset.BaseDataset.prepare_data', lambda self, index: time.sleep(
        1e6 if torch.utils.data.get_worker_info() else 0) or dict(inputs=MEGABYTE))
    assert refusal(train, cfg).startswith('the workers of a data loader give no more data (DataLoader timed out after ')
