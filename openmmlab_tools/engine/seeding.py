"""Random draws that depend only on the seed and the number of the iteration, so that resuming needs no saved states."""
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank
from torch.utils.data import BatchSampler, Sampler

from openmmlab_tools.registry import DATA_SAMPLERS

# The first number after the seed: the purpose of the draws.
MODEL, DATA, ORDER = 0, 1, 2


def seed_generators(*numbers: int) -> None:
    """Seeds the random generators of Python, numpy and torch, also on GPUs, with a hash of the numbers (>= 0)."""
    first, second, third = np.random.SeedSequence(numbers).generate_state(3).tolist()
    random.seed(first)
    np.random.seed(second)
    torch.manual_seed(third)


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seeds the generators like `seed_generators`; restores the state of the CPU's generators at the end."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed_generators(*numbers)
        yield
    random.setstate(python)
    np.random.set_state(numpy)


@dataclass(frozen=True)
class SeededBatch:
    """The indices of a batch. Who iterates over them to load, a data loader or its worker, first seeds the generators.
    """
    indices: list[int]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        seed_generators(*self.numbers)
        return iter(self.indices)


@DATA_SAMPLERS.register_module()
class SeededBatchSampler(Sampler[SeededBatch]):
    """A batch sampler that numbers the batches of a run. The number seeds the sampling and loading of a batch.

    Every pass begins at `position`, so passes of other hooks do not affect training. The seed is the seed of torch's
    generator when the sampler is built, which is the run's seed. mmengine passes `sampler` and `batch_size`.

    Args:
        batch_sampler: Config of the batch sampler whose batches are seeded.
        endless: Whether a pass over the data continues with the next pass, for loops without epochs.

    Attributes:
        position: Number of the next training iteration; `ExactResumeHook` sets it. Defaults to 0.
        skip: Number of skipped batches at the beginning of a pass that is not endless. Defaults to 0.
    """

    def __init__(self, sampler: Sampler[int], batch_size: int, batch_sampler: dict[str, Any], endless: bool) -> None:
        self.batches: BatchSampler = DATA_SAMPLERS.build(
            batch_sampler, default_args=dict(sampler=sampler, batch_size=batch_size))
        # Hooks and mmengine's loops read these three of a batch sampler.
        self.sampler, self.batch_size = sampler, batch_size
        self.drop_last = getattr(self.batches, 'drop_last', False)
        self.endless = endless
        self.seed, self.rank = torch.initial_seed(), get_rank()
        self.position = self.skip = 0
        # Endless passes share one stream, because samplers such as mmengine's InfiniteSampler cannot restart.
        self.stream = self._draw(0)
        self.drawn: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[SeededBatch]:
        first = self.position
        numbered = self._share(first) if self.endless else islice(self._draw(first - self.skip), self.skip, None)
        return (SeededBatch(batch, (self.seed, DATA, self.rank, number)) for number, batch in numbered)

    def _share(self, number: int) -> Iterator[tuple[int, list[int]]]:
        """Yields the batches from `number` on. Other passes may have drawn them already, or draw them later."""
        while True:
            while number not in self.drawn:
                try:
                    drawn, batch = next(self.stream)
                except StopIteration:
                    return
                self.drawn[drawn] = batch
                for old in [other for other in self.drawn if other < self.position]:
                    del self.drawn[old]
            yield number, self.drawn[number]
            number = max(number + 1, self.position)

    def _draw(self, first: int) -> Iterator[tuple[int, list[int]]]:
        """Numbers the batches; all ranks use one seed, because some samplers distribute a common order over them."""
        batches = self._passes()
        for number in count(first):
            with seeded(self.seed, ORDER, number):
                batch = next(batches, None)
            if batch is None:
                return
            yield number, batch

    def _passes(self) -> Iterator[list[int]]:
        for epoch in count():
            if epoch and hasattr(self.sampler, 'set_epoch'):
                self.sampler.set_epoch(epoch)
            batch = None
            for batch in self.batches:
                yield batch
            if batch is None or not self.endless:  # no data, or the end of a pass
                return
