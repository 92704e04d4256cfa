"""A hook that has a resumed run repeat what is random."""
from collections.abc import Iterator
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from .seeding import MODEL, seed_generators

# Keys of a checkpoint's `meta`: that its run seeded each iteration, and how many batches of the epoch `meta['epoch']`
# it was trained for.
MARK = 'seeded_each_iteration'
BATCHES = 'batches_of_epoch'


class SeedEachIteration(Hook):
    """Seeds what an iteration draws outside of the data, and has a resumed loop go on at the right batch.

    The training loop's loader has `SeededBatches`. Together they cover what is drawn from the generators of python,
    numpy and torch. Transforms and data preprocessors that keep a state start without it after a resume: mmdet's
    `CachedMosaic` and `CachedMixUp` with no images collected, `BatchSyncRandomResize` without the size it drew last.

    Attributes:
        iteration: The number of the iteration to train next. Unlike the runner's, it can be read while the loop is
            built.
        done: The batches of the running epoch that were trained before the run was resumed. Loops without epochs do
            not need it.
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
            runner.logger.warning(f'{runner.cfg.load_from} is from a run that was not seeded in each iteration, as '
                                  'mmengine alone does it: results may differ from those without an interruption.')

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
        # The same in all processes, as mmengine has it, unless randomness.diff_rank_seed makes the seeds differ: models
        # may choose at random what runs, and must choose the same for their gradients to be averaged.
        seed_generators(runner.seed, MODEL, runner.iter)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.iteration = runner.iter + 1

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        meta = checkpoint['meta']
        meta[MARK] = True
        # Hooks that save by epoch say that the next one has begun.
        meta[BATCHES] = meta['iter'] - self.first if meta['epoch'] == self.epoch else 0


class ResumedBatches:
    """The batches of a resumed loop without epochs.

    Its loader begins at the iteration to go on with. mmengine's loop wants to pass over the batches before that one: it
    is given none of them, so that none is loaded.

    Args:
        loader: The loader, with endless `SeededBatches`.
        passed_over: How many batches the loop asks for and passes over. onedl's calls `skip_iter` instead.
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
        """Does nothing: the loader is there already."""
