"""Random draws that follow from the seed and the number of the iteration.

Draws of an iteration do not depend on those before it. So a run that is resumed needs no saved state
of generators, of which every process, and each of its data loader workers, has its own.
"""
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import BatchSampler, Sampler

# The first number after the seed: what the draws are for.
MODEL, DATA, ORDER = 0, 1, 2


def seed_generators(*numbers: int) -> None:
    """Seeds the random generators of python, numpy and torch, also on GPUs, with a hash of the numbers (>= 0)."""
    first, second, third = np.random.SeedSequence(numbers).generate_state(3).tolist()
    random.seed(first)
    np.random.seed(second)
    torch.manual_seed(third)


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """Seeds the generators in the same way; afterwards those of the CPU are as they were before."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        seed_generators(*numbers)
        yield
    random.setstate(python)
    np.random.set_state(numpy)


@dataclass(frozen=True)
class SeededBatch:
    """Indices of a batch. Iterating over them, as a data loader or its worker does to load, first seeds the generators.

    Attributes:
        indices: The samples.
        numbers: See `seed_generators`.
    """
    indices: list[int]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        seed_generators(*self.numbers)
        return iter(self.indices)


class SeededBatches:
    """A batch sampler that numbers the batches of a run and seeds each, and the sampler that draws it, with its number.

    Every pass begins at the iteration that training is at. So a pass of others, such as hooks that compute statistics,
    changes nothing for training.

    Args:
        batches: The batch sampler. Its attributes can be read here, too.
        seed: The seed of the run.
        position: Returns the number of the iteration that is to be trained next.
        endless: Whether a pass goes on with the following ones, and leaves out the batches before its first, as loops
            without epochs need it.

    Attributes:
        skip: The batches left out at the begin of a pass that is not endless. Defaults to 0.
    """

    def __init__(self, batches: BatchSampler, seed: int, position: Callable[[], int], endless: bool) -> None:
        self.batches = batches
        self.seed = seed
        self.position = position
        self.endless = endless
        self.skip = 0
        self.rank = get_rank()
        # Endless passes share one stream: samplers such as mmengine's InfiniteSampler cannot start again.
        self.stream = self._draw(0)
        self.drawn: dict[int, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        if name == 'batches':  # not set yet, while a copy is made
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[SeededBatch]:
        first = self.position()
        numbered = self._share(first) if self.endless else islice(self._draw(first - self.skip), self.skip, None)
        return (SeededBatch(batch, (self.seed, DATA, self.rank, number)) for number, batch in numbered)

    def _share(self, number: int) -> Iterator[tuple[int, list[int]]]:
        """Yields the batches from a number on. Other passes may have drawn them, or draw them later."""
        while True:
            while number not in self.drawn:
                try:
                    drawn, batch = next(self.stream)
                except StopIteration:
                    return
                self.drawn[drawn] = batch
                for old in [other for other in self.drawn if other < self.position()]:
                    del self.drawn[old]
            yield number, self.drawn[number]
            number = max(number + 1, self.position())

    def _draw(self, first: int) -> Iterator[tuple[int, list[int]]]:
        """Numbers what the batch sampler gives. It draws alike in all processes: some share out a common order."""
        batches = self._passes()
        for number in count(first):
            with seeded(self.seed, ORDER, number):
                batch = next(batches, None)
            if batch is None:
                return
            yield number, batch

    def _passes(self) -> Iterator[list[int]]:
        for epoch in count():
            if epoch and hasattr(self.batches.sampler, 'set_epoch'):
                self.batches.sampler.set_epoch(epoch)
            batch = None
            for batch in self.batches:
                yield batch
            if batch is None or not self.endless:  # nothing to train on, or no more
                return


def with_seeded_batches(loader: dict[str, Any], seed: int, position: Callable[[], int], endless: bool
                        ) -> dict[str, Any]:
    """Copies the config of a data loader, with `SeededBatches` around its batch sampler; see there for the others."""
    loader = loader.copy()
    loader.setdefault('batch_size', 1)  # torch's default, which mmengine asks for where there is a batch sampler
    batch_sampler = loader.get('batch_sampler') or dict(type=BatchSampler, drop_last=loader.pop('drop_last', False))

    def build(sampler: Sampler[int], batch_size: int) -> SeededBatches:
        batches = DATA_SAMPLERS.build(batch_sampler, default_args=dict(sampler=sampler, batch_size=batch_size))
        return SeededBatches(batches, seed, position, endless)

    loader['batch_sampler'] = dict(type=build)
    return loader
