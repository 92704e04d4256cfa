"""Workers of data loaders live as long as the main process needs them."""
import multiprocessing
import os
import signal
import subprocess
from concurrent.futures import ProcessPoolExecutor

import pytest
from torch.utils.data import DataLoader, Dataset

from openmmlab_tools.signals import end_worker_with_parent
from tests.processes import is_alive, wait_until


class Process(Dataset):
    """The process that loads each sample."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def ask_to_end(number: signal.Signals) -> list[int]:
    """Sends a signal to a worker after its first sample, and returns the processes of all samples."""
    # As mmengine starts them. A worker that is spawned has threads of NumPy, which take a SIGTERM.
    batches = iter(DataLoader(Process(), num_workers=1, worker_init_fn=end_worker_with_parent,
                              multiprocessing_context='fork'))
    worker = int(next(batches))
    # By another process, as Slurm and torchrun do.
    subprocess.run(['kill', f'-{number.name.removeprefix("SIG")}', str(worker)], check=True)
    actual = [worker, *map(int, batches)]
    wait_until(lambda: not is_alive(worker))
    return actual


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGUSR1])
def test_a_worker_ends_by_its_main_process_alone(number: signal.Signals) -> None:
    # In a new process, because another test may have set the number of torch's threads in this one.
    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn')) as pool:
        actual = pool.submit(ask_to_end, number).result()
    assert len(actual) == 20 and len(set(actual)) == 1


def test_a_worker_that_its_main_process_ends_is_gone() -> None:
    batches = iter(DataLoader(Process(), num_workers=1, worker_init_fn=end_worker_with_parent))
    worker = int(next(batches))
    os.kill(worker, signal.SIGTERM)
    wait_until(lambda: not is_alive(worker))
