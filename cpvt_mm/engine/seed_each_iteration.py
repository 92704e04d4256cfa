"""A hook that makes random draws of a resumed run the same as without an interruption."""
from collections.abc import Iterator
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from .seeding import MODEL, seed_generators

# Keys of a checkpoint's `meta`: whether its run seeded each iteration, and the number of trained batches of the epoch
# `meta['epoch']`.
MARK = 'seeded_each_iteration'
BATCHES = 'batches_of_epoch'


class SeedEachIteration(Hook):
    """Seeds the random generators for each iteration, and makes a resumed loop continue at the right batch.

    `SeededBatches` in the training loader seeds the random draws of the data; this hook seeds all others. Together they
    cover the generators of Python, numpy and torch. Stateful transforms and data preprocessors start without their
    state after a resume: mmdet's `CachedMosaic` and `CachedMixUp` with an empty cache, `BatchSyncRandomResize` without
    its last size.

    Attributes:
        iteration: The number of the next training iteration. Unlike `runner.iter`, it can be read while the loop is
            built.
        done: Number of batches of the current epoch that were trained before the run was resumed. Loops without epochs
            do not need it.
    """

    priority = 'VERY_HIGH'

    def __init__(self) -> None:
        self.iteration = 0
        self.done = 0
        self.epoch, self.first = -1, 0  # the epoch that runs, and the number of its first iteration

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        if not runner.cfg.get('resume'):
            return
        meta = checkpoint['meta']
        self.done = meta.get(BATCHES, 0)
        if MARK not in meta:
            runner.logger.warning(f'{runner.cfg.load_from} is from a run without a seed for each iteration, such as '
                                  'one of plain mmengine: results may differ from a run without an interruption.')

    def before_train_epoch(self, runner: Runner) -> None:
        loop, self.iteration = runner.train_loop, runner.iter
        if not hasattr(loop, 'dataloader_iterator'):
            self.epoch, self.first = runner.epoch, runner.iter - self.done
            loop.dataloader.batch_sampler.skip = self.done
        elif runner.iter:  # the loop began its iterator before it was resumed
            loop.dataloader_iterator = ResumedBatches(
                loop.dataloader, 0 if hasattr(loop.dataloader_iterator, 'skip_iter') else runner.iter)

    def after_train_epoch(self, runner: Runner) -> None:
        if self.done:
            runner.train_loop.dataloader.batch_sampler.skip = self.done = 0

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        # All processes use the same seed, as in mmengine, unless randomness.diff_rank_seed is set. Models may choose
        # randomly which layers run, and all processes must choose the same layers to average their gradients.
        seed_generators(runner.seed, MODEL, runner.iter)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.iteration = runner.iter + 1

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        meta = checkpoint['meta']
        meta[MARK] = True
        # Hooks that save by epoch set meta['epoch'] to the next epoch.
        meta[BATCHES] = meta['iter'] - self.first if meta['epoch'] == self.epoch else 0


class ResumedBatches:
    """The batches of a resumed loop without epochs.

    The loader begins at the iteration to resume from. mmengine's loop first requests and discards all batches before
    that iteration. It gets None for each of them, so that no data is loaded.

    Args:
        loader: The loader, with endless `SeededBatches`.
        passed_over: Number of batches that the loop requests and discards. onedl's loop calls `skip_iter` instead.
    """

    def __init__(self, loader: DataLoader, passed_over: int) -> None:
        self.batches = iter(loader)
        self.passed_over = passed_over

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.passed_over:
            self.passed_over -= 1
            return None
        return next(self.batches)

    def skip_iter(self, num_iters: int) -> None:
        """Does nothing, because the loader begins at the right iteration already."""
