"""Hooks that make runs repeatable: a resumed run draws and loads the same, and all ranks start the same."""
from itertools import chain, repeat
from typing import Any

from mmengine.dist import all_gather_object, get_world_size, is_main_process
from mmengine.hooks import EarlyStoppingHook, Hook
from mmengine.runner import Runner
from torch.nn.parallel import DistributedDataParallel

from openmmlab_tools.checkpoints.fitting import hash_weights, inner
from openmmlab_tools.data.datasets import classes_of
from openmmlab_tools.engine.ranks import end_all
from openmmlab_tools.engine.seeding import MODEL, SeededBatchSampler, seed_generators
from openmmlab_tools.errors import UserError
from openmmlab_tools.registry import HOOKS

from .same_state import (
    ACCUMULATED,
    SCHEDULE,
    STATE,
    accumulated,
    check_resumes,
    differences,
    settings,
    state_of,
)

# Keys of a checkpoint's `meta`: whether its run seeded each iteration, the number of trained batches of the epoch
# `meta['epoch']`, the settings of the run, and for each hook for early stopping, the validations in a row without a
# better result, and the best result.
MARK = 'seeded_each_iteration'
BATCHES = 'batches_of_epoch'
SETTINGS = 'settings'
STOPPING = 'early_stopping'


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Seeds the random generators for each iteration, and makes a resumed loop continue at the right batch.

    `SeededBatchSampler` seeds the random draws of the data. This hook seeds all other draws of Python, numpy and torch,
    and sets the position of the sampler. Some transforms and data preprocessors have a state that is not saved: after a
    resume, mmdet's `CachedMosaic` and `CachedMixUp` begin with an empty cache, and `BatchSyncRandomResize` without its
    last size.

    A checkpoint contains gradients that are still being accumulated, and the counts of EarlyStoppingHook. A warning
    names settings and data that have changed since the checkpoint. Only `CheckedEpochBasedTrainLoop` counts the batches
    of a resumed epoch from its beginning.
    """

    priority = 'VERY_HIGH'

    def __init__(self) -> None:
        self.done = 0  # batches of the current epoch that were trained before the resume, in loops with epochs
        self.count = 0  # backward passes in the accumulation that is under way
        self.schedule_differs = False
        self.epoch, self.first = -1, 0  # the epoch that runs, and the number of the first iteration in it

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        if not runner.cfg.get('resume'):
            return
        meta = checkpoint['meta']
        self.done = meta.get(BATCHES, 0)
        check_resumes(runner, checkpoint, self.done)
        under_way = checkpoint.get(ACCUMULATED, {})
        self.count = under_way.get('counts', {}).get('', 0)
        gradients = under_way.get('gradients', {})
        for name, parameter in inner(runner.model).named_parameters():
            if name in gradients:
                parameter.grad = gradients[name].to(parameter)
        for hook, state in zip(_stopping(runner), meta.get(STOPPING, []), strict=False):
            hook.wait_count, hook.best_score = state
        before, now = meta.get(SETTINGS, {}), {**settings(runner.cfg), **data_of(runner)}
        # Old checkpoints do not tell the data.
        changed = differences(now, {**data_of(runner), **before}) if before else ''
        self.schedule_differs = bool(before) and any(
            now.get(key) != before.get(key) for key in {**now, **before} if key.startswith(SCHEDULE))
        if changed:
            runner.logger.warning(f'The checkpoint is from run {meta["experiment_name"]}, which had other settings: '
                                  f'{changed}.')
        if MARK not in meta:
            runner.logger.warning('The checkpoint is from a run without a seed for each iteration, such as one of '
                                  'plain mmengine: results may differ from a run without an interruption.')
        elif meta.get('seed') != runner.seed and is_main_process():
            runner.logger.warning(f'The checkpoint is from a run with seed {meta.get("seed")}, but this run has seed '
                                  f'{runner.seed}, so the order of the data and the results may differ from a run '
                                  f'without an interruption. Set randomness.seed to {meta.get("seed")} in the config.')

    def before_train(self, runner: Runner) -> None:
        wrapper = runner.optim_wrapper
        if self.count and wrapper.inner_count != self.count:
            wrapper.initialize_count_status(runner.model, self.count, -1)
        if not self.count and runner.iter and not wrapper.should_update():
            runner.logger.warning(f'The checkpoint was saved after iteration {runner.iter}, while gradients were being '
                                  'accumulated, but contains no gradients. Gradients since the last update are lost.')
        if self.schedule_differs and runner.param_schedulers:
            runner.logger.warning('The learning rate follows the schedule in the checkpoint, not the schedule in the '
                                  'config. For a new schedule, start from the weights: pass --cfg-options '
                                  'load_from=CHECKPOINT instead of --resume.')

    def before_train_epoch(self, runner: Runner) -> None:
        loop, batches = runner.train_loop, _batches(runner)
        has_epochs = not hasattr(loop, 'dataloader_iterator')
        if has_epochs:
            self.epoch, self.first = runner.epoch, runner.iter - self.done
        if batches is None:
            return
        batches.position = runner.iter
        if has_epochs:
            batches.skip = self.done
        elif runner.iter:  # the loop may have begun its iterator before it was resumed
            passed_over = 0 if hasattr(loop.dataloader_iterator, 'skip_iter') else runner.iter
            loop.dataloader_iterator = ResumedBatches(repeat(None, passed_over), loop.dataloader)

    def after_train_epoch(self, runner: Runner) -> None:
        self.done = 0
        if (batches := _batches(runner)) is not None:
            batches.skip = 0

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        # All processes use the same seed, as in mmengine, unless randomness.diff_rank_seed is set. Models may choose
        # randomly which layers run, and all processes must choose the same layers to average their gradients.
        seed_generators(runner.seed, MODEL, runner.iter)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if (batches := _batches(runner)) is not None:
            batches.position = runner.iter + 1

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        if 'optimizer' in checkpoint:  # others are not for resuming
            checkpoint.update(accumulated(runner))
            checkpoint['meta'][STATE] = state_of(runner)
        meta = checkpoint['meta']
        meta.update({MARK: True, SETTINGS: {**settings(runner.cfg), **data_of(runner)},
                     STOPPING: [[hook.wait_count, hook.best_score] for hook in _stopping(runner)],
                     # Hooks that save by epoch set meta['epoch'] to the next epoch.
                     BATCHES: meta['iter'] - self.first if meta['epoch'] == self.epoch else 0})


def data_of(runner: Runner) -> dict[str, str]:
    """Returns the number of images, classes and processes of a training, as texts by name."""
    dataset = runner.train_dataloader.dataset
    known = {'number of training images': str(len(dataset))} if hasattr(dataset, '__len__') else {}
    known['number of processes'] = str(get_world_size())
    return {**known, 'classes of the training data': ', '.join(classes_of(dataset))}


def _stopping(runner: Runner) -> list[EarlyStoppingHook]:
    return [hook for hook in runner.hooks if isinstance(hook, EarlyStoppingHook)]


def _batches(runner: Runner) -> SeededBatchSampler | None:
    sampler = runner.train_dataloader.batch_sampler
    return sampler if isinstance(sampler, SeededBatchSampler) else None


class ResumedBatches(chain[Any]):
    """The batches of a resumed loop without epochs, whose loader begins at the iteration to resume from. mmengine's
    loop discards as many batches before it, and gets None for each. onedl's loop calls `skip_iter` instead.
    """

    def skip_iter(self, num_iters: int) -> None:
        """Does nothing, because the loader begins at the right iteration already."""


@HOOKS.register_module()
class SameStartHook(Hook):
    """Ends training before its first step if ranks differ in iteration, seed, settings or weights.

    The main process raises a UserError that names the rank and the difference. The other processes exit with status 1.
    Weights are compared only if each rank has all weights, as with DistributedDataParallel.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        if get_world_size() == 1:
            return
        stated = dict(settings(runner.cfg), **data_of(runner), iteration=str(runner.iter),
                      seed=str((runner.cfg.get('randomness') or {}).get('seed')))
        if isinstance(runner.model, DistributedDataParallel):
            stated['the hash of the weights'] = hash_weights(runner.model)
        first, *others = all_gather_object(stated)
        for rank, other in enumerate(others, 1):
            if other != first:
                end_all(UserError(f'rank {rank} differs from rank 0: {differences(other, first)}: start all ranks with '
                                  'the same config, options and files.'))
