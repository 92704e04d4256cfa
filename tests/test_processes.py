"""Workers of data loaders live as long as the main process needs them."""
import os
import signal
import subprocess

import pytest
from torch.utils.data import DataLoader, Dataset

from cpvt_mm.processes import end_worker_with_parent
from tests.processes import is_alive, wait_until


class Process(Dataset):
    """The process that loads each sample."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return os.getpid()


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGUSR1])
def test_a_worker_ends_by_its_main_process_alone(number: signal.Signals) -> None:
    batches = iter(DataLoader(Process(), num_workers=1, worker_init_fn=end_worker_with_parent))
    worker = int(next(batches))
    # By another process, as Slurm and torchrun do.
    subprocess.run(['kill', f'-{number.name.removeprefix("SIG")}', str(worker)], check=True)
    assert [int(process) for process in batches] == [worker] * 19
    wait_until(lambda: not is_alive(worker))


def test_a_worker_that_its_main_process_ends_is_gone() -> None:
    batches = iter(DataLoader(Process(), num_workers=1, worker_init_fn=end_worker_with_parent))
    worker = int(next(batches))
    os.kill(worker, signal.SIGTERM)
    wait_until(lambda: not is_alive(worker))
