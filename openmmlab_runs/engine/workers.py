"""Lets a wait for the workers of data loaders have an end."""
import re

from torch.utils.data import DataLoader

from openmmlab_runs.errors import UserError, first_line

LONGEST = 600.  # seconds without a batch after which workers are given up
LOST = re.compile(r'DataLoader (timed out|worker \(pid)')  # torch's errors


def limit_waiting(loader: DataLoader) -> None:
    """Sets the time after which workers without a batch are given up, unless the config sets one (`timeout`)."""
    if loader.num_workers and not loader.timeout:
        loader.timeout = LONGEST


def lost_workers(error: Exception) -> UserError | None:
    """Returns the sentence for an error of torch that workers are gone or give no batch; None for other errors."""
    if not LOST.search(first_line(error)):
        return None
    return UserError(f'the workers of a data loader give no more data ({first_line(error).rstrip(".")}): see their '
                     'errors above; if they lack memory or shared memory (shm), start the container with more (docker '
                     'run --shm-size 8g), or set num_workers or batch_size lower.')
