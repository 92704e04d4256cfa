"""Randomness that a resumed run repeats.

What is random in an iteration follows from the seed and the number of the iteration, not from what was drawn before. So
there is no state to keep: every process, and each of its workers, would have one of its own.
"""
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice, repeat
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_rank
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

# Tells in the `meta` of a checkpoint that the run was such a one.
MARK = 'seeded_each_iteration'
MODEL, DATA = 0, 1


def seed_generators(*numbers: int) -> None:
    """Seeds the random generators of python, numpy and torch, also on GPUs, with a hash of the numbers (>= 0)."""
    first, second, third = np.random.SeedSequence(numbers).generate_state(3).tolist()
    random.seed(first)
    np.random.seed(second)
    torch.manual_seed(third)


@dataclass(frozen=True)
class SeededBatch:
    """Indices of a batch. Who goes through them to load the samples, in a worker or not, seeds the generators first."""
    indices: list[int]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        seed_generators(*self.numbers)
        return iter(self.indices)


class SeededBatches:
    """A batch sampler that numbers the batches of a run, from one pass to the next, and seeds each with its number.

    Args:
        batches: The batch sampler; its attributes are this one's, too.
        seed: Of the run.
        first: The number of the first batch.
        endless: Whether the first pass goes on with the following ones, and leaves out the batches before `first`, as
            loops without epochs need it; their own way is to load these batches.
    """

    def __init__(self, batches: Iterable[list[int]], seed: int, first: int, endless: bool) -> None:
        self.batches = batches
        self.first = first
        self.endless = endless
        self.origin = (seed, DATA, get_rank())
        self.numbers = count(first)

    def __getattr__(self, name: str) -> Any:
        if name == 'batches':  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[SeededBatch]:
        for batch in islice(self._passes(), self.first, None) if self.endless else self.batches:
            yield SeededBatch(batch, (*self.origin, next(self.numbers)))

    def _passes(self) -> Iterator[list[int]]:
        sampler = getattr(self.batches, 'sampler', None)
        for epoch in count():
            if epoch and hasattr(sampler, 'set_epoch'):
                sampler.set_epoch(epoch)
            batch = None
            for batch in self.batches:
                yield batch
            if batch is None:  # nothing to train on
                return


class SeedEachIteration(Hook):
    """Seeds what an iteration draws outside of the data, and has loops without epochs go on at the right batch."""

    priority = 'VERY_HIGH'

    def before_train_epoch(self, runner: Runner) -> None:
        batches = getattr(runner.train_loop, 'dataloader_iterator', None)
        if batches is None:
            return
        # The loop now wants to get to the batches it has not trained on. It is there already.
        if hasattr(batches, 'skip_iter'):  # onedl
            batches.skip_iter = lambda steps: None
        else:
            runner.train_loop.dataloader_iterator = chain(repeat(None, runner.iter), batches)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        # The same in all processes, as mmengine has it, unless randomness.diff_rank_seed makes the seeds differ: models
        # may choose at random what runs, and must choose the same for their gradients to be averaged.
        seed_generators(runner.seed, MODEL, runner.iter)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        checkpoint['meta'][MARK] = True


def seed_each_iteration(runner: Runner, done: int) -> None:
    """Has what is random in each iteration of a runner follow from the iteration's number.

    Args:
        runner: Whose training loop is not built yet.
        done: The iterations that the checkpoint to resume was trained for; 0 without one.
    """
    build = runner.build_dataloader

    def build_seeded(*args: Any, **kwargs: Any) -> DataLoader:
        del runner.build_dataloader  # the training loop's loader is the first to be built, the others stay as they are
        loader = build(*args, **kwargs)
        # Past torch's check, which is there for loaders that are in use.
        loader.__dict__['batch_sampler'] = SeededBatches(
            loader.batch_sampler, runner.seed, done, endless='max_iters' in runner.cfg.train_cfg)
        return loader

    runner.build_dataloader = build_seeded
    runner.register_hook(SeedEachIteration())
