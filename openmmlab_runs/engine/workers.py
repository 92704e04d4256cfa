"""Lets a wait for the workers of data loaders have an end: they have enough shared memory, and a longest time."""
import logging
import os
import pickle
import re
import shutil
from contextlib import suppress
from io import BytesIO
from typing import Any

import torch
from mmengine.logging import print_log
from torch.utils.data import DataLoader

from openmmlab_runs.errors import UserError, first_line

LONGEST = 600.  # seconds without a batch after which workers are given up
SHARED = '/dev/shm'
PAGE = 4096  # bytes; a tensor takes whole pages
LOST = re.compile(r'DataLoader (timed out|worker \(pid)')  # torch's errors
REMEDY = 'start the container with more (docker run --shm-size 8g), or set {name}num_workers or batch_size lower'


def limit_waiting(loader: DataLoader) -> None:
    """Sets the time after which workers without a batch are given up, unless the config sets one (`timeout`)."""
    if loader.num_workers and not loader.timeout:
        loader.timeout = LONGEST


def check_shared_memory(loader: DataLoader, sample: Any, name: str) -> None:
    """Raises a UserError if shared memory has no room for a batch of each worker, for which torch would wait for ever;
    warns, with the loader's `name`, if it has none for all batches that are loaded in advance.
    """
    if not loader.num_workers or not os.path.isdir(SHARED):
        return
    ranks, ahead = int(os.environ.get('LOCAL_WORLD_SIZE', 1)), loader.prefetch_factor or 2
    batch = shared_bytes(sample) * (getattr(loader.batch_sampler, 'batch_size', None) or 1)
    least, free = ranks * loader.num_workers * batch, shutil.disk_usage(SHARED).free
    if ahead * least <= free:
        return
    sentence = (f'{name}: its workers need about {ahead * least / 1e6:.0f} MB of shared memory ({ranks} processes x '
                f'{loader.num_workers} workers x {ahead} batches x {batch / 1e6:.1f} MB), but {SHARED} has '
                f'{free / 1e6:.0f} MB: {REMEDY.format(name=name + ".")}.')
    if least > free:
        raise UserError(sentence)
    print_log(sentence, 'current', logging.WARNING)


def shared_bytes(sample: Any) -> int:
    """Returns the bytes of shared memory that a worker needs for a sample: those of its tensors."""
    counter = _Counter(BytesIO())
    with suppress(Exception):  # what cannot be pickled, workers tell themselves
        counter.dump(sample)
    return counter.bytes


class _Counter(pickle.Pickler):

    bytes = 0

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        self.bytes += -(-value.untyped_storage().nbytes() // PAGE) * PAGE
        return int, ()


def lost_workers(error: Exception) -> UserError | None:
    """Returns the sentence for an error of torch that workers are gone or give no batch; None for other errors."""
    if not LOST.search(first_line(error)):
        return None
    return UserError(f'the workers of a data loader give no more data ({first_line(error).rstrip(".")}): see their '
                     f'errors above; if they lack memory or shared memory (shm), {REMEDY.format(name="")}.')
