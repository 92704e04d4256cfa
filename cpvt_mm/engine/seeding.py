"""Randomness that a resumed run repeats.

What is random in an iteration follows from the seed and the number of the iteration, not from what was drawn before. So
there is no state to keep: every process, and each of its workers, would have one of its own.
"""
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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
# And how many batches of its epoch (`meta['epoch']`) it is trained for.
BATCHES = 'batches_of_epoch'
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
    """Indices of a batch. Who goes through them to load the samples, in a worker or not, seeds the generators first."""
    indices: list[int]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[int]:
        seed_generators(*self.numbers)
        return iter(self.indices)


class SeededBatches:
    """A batch sampler that numbers the batches of a run and seeds each, also what the sampler draws, with its number.

    Every pass begins at the iteration that training is at, so that one which is not the training's, as of hooks that
    compute statistics, changes nothing.

    Args:
        batches: The batch sampler; its attributes are this one's, too.
        seed: Of the run.
        position: Tells the number of the iteration that is to be trained next.
        endless: Whether a pass goes on with the following ones, and leaves out the batches before its first, as loops
            without epochs need it; their own way is to load these batches.

    Attributes:
        skip: The batches that are left out at the begin of a pass that is not endless.
    """

    def __init__(self, batches: Iterable[list[int]], seed: int, position: Callable[[], int], endless: bool) -> None:
        self.batches = batches
        self.seed = seed
        self.position = position
        self.endless = endless
        self.skip = 0
        self.rank = get_rank()
        # Of endless passes, which share one: samplers as mmengine's InfiniteSampler cannot start again.
        self.stream = self._draw(0)
        self.drawn: dict[int, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        if name == 'batches':  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[SeededBatch]:
        first = self.position()
        numbered = self._share(first) if self.endless else islice(self._draw(first - self.skip), self.skip, None)
        return (SeededBatch(batch, (self.seed, DATA, self.rank, number)) for number, batch in numbered)

    def _share(self, number: int) -> Iterator[tuple[int, list[int]]]:
        """The batches from a number on, which others may have drawn, or draw, too."""
        while True:
            while number not in self.drawn:
                drawn, batch = next(self.stream, (None, None))
                if drawn is None:
                    return
                self.drawn[drawn] = batch
                for old in [other for other in self.drawn if other < self.position()]:
                    del self.drawn[old]
            yield number, self.drawn[number]
            number = max(number + 1, self.position())

    def _draw(self, first: int) -> Iterator[tuple[int, list[int]]]:
        """What the batch sampler gives, numbered. It draws alike in all processes: some share out a common order."""
        batches = self._passes()
        for number in count(first):
            with seeded(self.seed, ORDER, number):
                batch = next(batches, None)
            if batch is None:
                return
            yield number, batch

    def _passes(self) -> Iterator[list[int]]:
        sampler = getattr(self.batches, 'sampler', None)
        for epoch in count():
            if epoch and hasattr(sampler, 'set_epoch'):
                sampler.set_epoch(epoch)
            batch = None
            for batch in self.batches:
                yield batch
            if batch is None or not self.endless:  # nothing to train on, or no more
                return


class SeedEachIteration(Hook):
    """Seeds what an iteration draws outside of the data, and has loops go on at the right batch.

    Args:
        done: The batches that the epoch to resume in was trained for. Loops without epochs do not need it.
    """

    priority = 'VERY_HIGH'

    def __init__(self, done: int) -> None:
        self.done = done
        self.epoch, self.first = -1, 0  # the epoch that runs, and the number of its first iteration

    def before_train_epoch(self, runner: Runner) -> None:
        loop = runner.train_loop
        batches = getattr(loop, 'dataloader_iterator', None)
        if batches is None:
            self.epoch, self.first = runner.epoch, runner.iter - self.done
            if self.done:
                done, run_iter = self.done, loop.run_iter
                loop.dataloader.batch_sampler.skip = done
                # Hooks tell the end of an epoch by the index of the batch.
                loop.run_iter = lambda index, batch: run_iter(done + index, batch)
        # The loop now wants to get to the batches it has not trained on. It is there already.
        elif hasattr(batches, 'skip_iter'):  # onedl
            batches.skip_iter = lambda steps: None
        else:
            loop.dataloader_iterator = chain(repeat(None, runner.iter), batches)

    def after_train_epoch(self, runner: Runner) -> None:
        if self.epoch >= 0 and self.done:
            runner.train_loop.dataloader.batch_sampler.skip = self.done = 0
            del runner.train_loop.run_iter  # the class has it

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        # The same in all processes, as mmengine has it, unless randomness.diff_rank_seed makes the seeds differ: models
        # may choose at random what runs, and must choose the same for their gradients to be averaged.
        seed_generators(runner.seed, MODEL, runner.iter)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        meta = checkpoint['meta']
        meta[MARK] = True
        # Hooks that save by epoch say that the next one has begun.
        meta[BATCHES] = meta['iter'] - self.first if meta['epoch'] == self.epoch else 0


def seed_each_iteration(runner: Runner, meta: Mapping[str, Any]) -> None:
    """Has what is random in each iteration of a runner follow from the iteration's number.

    That covers what is drawn from the generators of python, numpy and torch. What transforms and data preprocessors
    keep from one batch to the next is lost when a run is resumed: the images that mmdet's `CachedMosaic` and
    `CachedMixUp` collect, the size that its `BatchSyncRandomResize` drew last.

    Args:
        runner: Whose training loop is not built yet.
        meta: Of the checkpoint to resume; empty without one.
    """
    build, done = runner.build_dataloader, meta.get('iter', 0)

    def build_seeded(*args: Any, **kwargs: Any) -> DataLoader:
        del runner.build_dataloader  # the training loop's loader is the first to be built, the others stay as they are
        loader = build(*args, **kwargs)
        # Past torch's check, which is there for loaders that are in use.
        loader.__dict__['batch_sampler'] = SeededBatches(
            # A loop that is being built does not know of the checkpoint.
            loader.batch_sampler, runner.seed, lambda: max(done, runner.iter), 'max_iters' in runner.cfg.train_cfg)
        return loader

    runner.build_dataloader = build_seeded
    runner.register_hook(SeedEachIteration(meta.get(BATCHES, 0)))
