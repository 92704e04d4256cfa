"""Writes checkpoints so that a run can resume after a kill, a signal or a full disk at any moment."""
import os
import signal
import threading
from bisect import bisect
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, EarlyStoppingHook, Hook
from mmengine.runner import IterBasedTrainLoop, Runner, find_latest_checkpoint

from openmmlab_tools.engine.work_dir import in_folder
from openmmlab_tools.errors import show
from openmmlab_tools.files import held, remove_leftovers, write_bytes, write_text
from openmmlab_tools.registry import HOOKS
from openmmlab_tools.signals import ASK_TO_END
from openmmlab_tools.storage import for_checkpoints

from .same_state import average_gradients

# Key of the message hub for the number of consecutive bad iterations; `NonFiniteLossHook` updates it.
BAD_ITERATIONS = 'bad_iterations'
# The name of the backend, for `backend_args`.
WHOLE_FILES = 'openmmlab_tools.whole_files'


@register_backend(WHOLE_FILES)
class WholeFileBackend(LocalBackend):
    """mmengine's backend for local files, with atomic writes: a file is complete or does not exist."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        path = Path(filepath)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, obj)


@HOOKS.register_module()
class DurableCheckpointHook(CheckpointHook):
    """Saves checkpoints like mmengine's CheckpointHook, with the same settings. There is always a complete checkpoint.

    It writes each new file, also `best_*`, to a temporary name and then renames it. Then it writes `last_checkpoint`,
    and removes old checkpoints last. The next run removes temporary files. A second run in the same work dir raises a
    `UserError`; see `held`.

    With `save_best`, each checkpoint is written again after its validation, with the results. If a run is killed before
    that, the next run repeats the validation. Without `backend_args`, `WholeFileBackend` writes local files.
    """

    backend_args: dict[str, Any] | None
    file_backend: Any
    out_dir: Any
    last_ckpt: str | None
    # If not 0, the next iteration is the last: its checkpoint is saved, and the process exits with this status.
    end_status = 0

    def before_train(self, runner: Runner) -> None:
        self.holding = ExitStack()  # holds the work dir from the beginning to the end of training
        if is_main_process():
            self.holding.enter_context(held(Path(runner.work_dir)))
        if self.out_dir is not None:
            self.out_dir = for_checkpoints(str(self.out_dir))
        is_local = '://' not in str(self.out_dir or runner.work_dir)
        if is_local and self.backend_args is None and self.file_client_args is None:
            self.backend_args = dict(backend=WHOLE_FILES)
        for key, path in best_checkpoints(runner).items():  # of a work dir that may have been copied since
            runner.message_hub.update_info(key, in_folder(runner.work_dir, path))
        # The base class also removes old checkpoints that a killed run left: each checkpoint lists those that existed.
        super().before_train(runner)
        if is_main_process():
            for folder in {str(self.out_dir), runner.work_dir}:
                if '://' not in folder:
                    remove_leftovers(Path(folder), '*.pth', 'last_checkpoint', '*.png', '*.json', '*.py')
        if runner.cfg.get('resume'):
            resumed = runner.cfg.get('load_from') or find_latest_checkpoint(runner.work_dir)
            if resumed:
                self._set_last(runner, str(resumed))
        if self.save_best and self._validation_is_due(runner):
            runner.val_loop.run()

    def after_train(self, runner: Runner) -> None:
        super().after_train(runner)
        self.holding.close()

    def _validation_is_due(self, runner: Runner) -> bool:
        """Returns whether the validation after the resumed checkpoint is missing."""
        loop = runner.train_loop
        by_iter = isinstance(loop, IterBasedTrainLoop)
        # A checkpoint by iteration is inside an epoch, so the resumed loop reaches the validation at the epoch's end.
        if runner.val_loop is None or by_iter == self.by_epoch:
            return False
        done, last = (runner.iter, loop.max_iters) if by_iter else (runner.epoch, loop.max_epochs)
        interval = loop.val_interval
        if hasattr(loop, 'dynamic_milestones'):  # loops apply them after training, but not when resumed
            interval = loop.dynamic_intervals[bisect(loop.dynamic_milestones, done + 1) - 1]
        return (done >= max(loop.val_begin, 1) and (done % interval == 0 or done == last)
                and runner.message_hub.runtime_info.get('last_validation') != runner.iter)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if saves_after_iteration(self, runner):
            self._save(runner, runner.epoch, runner.iter + 1, in_epoch=True)
        if self.end_status:
            runner.logger.warning('Training ends at a signal: ' + (
                f'--resume continues from {self.last_ckpt}.' if self.last_ckpt else 'there is no checkpoint.'))
            barrier()  # a launcher kills all processes when the first one ends
            self.holding.close()
            raise SystemExit(self.end_status)

    def after_train_epoch(self, runner: Runner) -> None:
        if self.by_epoch and (self.every_n_epochs(runner, self.interval, self.save_begin)
                              or (self.save_last and self.is_last_train_epoch(runner))):
            self._save(runner, runner.epoch + 1, runner.iter)

    def after_val_epoch(self, runner: Runner, metrics: dict[str, Any]) -> None:
        runner.message_hub.update_info('last_validation', runner.iter)
        if not self.save_best:
            super().after_val_epoch(runner, metrics)
            return
        before, last, backend = best_checkpoints(runner), self.last_ckpt, self.file_backend
        # Without a last checkpoint, mmengine saves only the best checkpoint. The last checkpoint is saved below.
        self.last_ckpt = None
        backend.remove = backend.rmtree = lambda path: None  # mmengine would remove before it saves
        try:
            super().after_val_epoch(runner, metrics)
        finally:
            del backend.remove, backend.rmtree
        self.last_ckpt, best = last, best_checkpoints(runner)
        for path in {*before.values()} - {*best.values()}:  # all checkpoints may have the same name
            # If this work dir is a copy, the path may be in the original, which must stay. If a run was killed after
            # this line, the file is already removed.
            if is_main_process() and Path(path).parent == Path(self.out_dir) and backend.exists(path):
                backend.remove(path)
        if last and (best != before or last == self._path(runner.epoch if self.by_epoch else runner.iter)):
            self._save(runner, runner.epoch, runner.iter)

    def after_val(self, runner: Runner) -> None:
        """Saves the last checkpoint if the validation ends the training early, as mmengine's EarlyStoppingHook does."""
        loop = runner.train_loop
        if not getattr(loop, 'stop_training', False) or runner.iter >= runner.max_iters:
            return
        if self.save_last:
            self._save(runner, runner.epoch, runner.iter, in_epoch=isinstance(loop, IterBasedTrainLoop))
        show(f'Training stops early, after iteration {runner.iter} of {runner.max_iters}'
             + ''.join(f', because of {hook.monitor}, whose best value is {hook.best_score:.4g}'
                       for hook in runner.hooks if isinstance(hook, EarlyStoppingHook))
             + (f': --resume continues from {self.last_ckpt}.' if self.last_ckpt else '.'))

    def _set_last(self, runner: Runner, path: str) -> None:
        self.last_ckpt = path
        runner.message_hub.update_info('last_ckpt', path)

    def _path(self, step: int) -> str:
        return str(self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step)))

    def _save(self, runner: Runner, epoch: int, iteration: int, in_epoch: bool = False) -> None:
        """Saves the state unless the last iteration was bad, and removes old checkpoints.

        A checkpoint within an epoch has the number of its iteration in its name, also among checkpoints of epochs. It
        is not removed.
        """
        in_epoch = in_epoch and self.by_epoch
        step = epoch if self.by_epoch and not in_epoch else iteration
        runner.logger.info(f'Saving checkpoint {step}')
        if runner.message_hub.runtime_info.get(BAD_ITERATIONS) and runner.iter + 1 < runner.max_iters:
            runner.logger.warning(f'Checkpoint {step} is skipped, because the last iteration was bad.')
            return
        steps = [*getattr(self, 'keep_ckpt_ids', ())]
        if self.max_keep_ckpts > 0 and step not in steps and not in_epoch:
            steps.append(step)
            runner.message_hub.update_info('keep_ckpt_ids', steps)
        name = f'iter_{step}.pth' if in_epoch else self.filename_tmpl.format(step)
        average_gradients(runner)
        runner.save_checkpoint(
            self.out_dir, name, self.file_client_args, save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler, meta=dict(epoch=epoch, iter=iteration),
            by_epoch=self.by_epoch, backend_args=self.backend_args, **self.args)
        # The last checkpoint is set only now, because saving may fail: then the previous one is still the last. So the
        # hub in the saved file names the previous checkpoint. mmengine does not read that entry, and `before_train`
        # corrects it after a resume.
        path = self.file_backend.join_path(self.out_dir, name)
        self._set_last(runner, path)
        if is_main_process():
            write_text(Path(runner.work_dir, 'last_checkpoint'), path)
        if self.max_keep_ckpts > 0:
            self.keep_ckpt_ids.clear()
            self.keep_ckpt_ids.extend(steps)  # a deque of limited length
            for old in steps[:-self.max_keep_ckpts]:
                path = self._path(old)
                if is_main_process() and path != self.last_ckpt:  # all steps may have the same name
                    self.file_backend.remove(path)


def saves_after_iteration(hook: CheckpointHook, runner: Runner) -> bool:
    """Returns whether a hook saves after this iteration, by its interval or at a signal."""
    return bool(getattr(hook, 'end_status', 0)) or (not hook.by_epoch and (
        hook.every_n_train_iters(runner, hook.interval, hook.save_begin)
        or (hook.save_last and hook.is_last_train_iter(runner))))


def best_checkpoints(runner: Runner) -> dict[str, str]:
    return {name: path for name, path in runner.message_hub.runtime_info.items() if name.startswith('best_ckpt')}


@HOOKS.register_module()
class SaveOnSignalHook(Hook):
    """Ends training after SIGTERM or SIGUSR1 with a checkpoint of the last whole iteration.

    If one rank receives the signal, all ranks end after the same iteration, with status 128 + the number of the signal.
    A running validation is finished first. Without `DurableCheckpointHook`, or outside the main thread, signals have
    their usual effect.
    """

    priority = 'BELOW_NORMAL'  # before NonFiniteLossHook, which checks the model that will be saved

    def before_train(self, runner: Runner) -> None:
        self.number, self.process = 0, os.getpid()
        self.saving = [hook for hook in runner.hooks if isinstance(hook, DurableCheckpointHook)]
        if self.saving and threading.current_thread() is threading.main_thread():
            for number in ASK_TO_END:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        if os.getpid() != self.process:  # a worker of a data loader, which has inherited this function
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        number = torch.tensor(self.number)
        all_reduce(number, 'max')
        if number and self.saving:
            self.saving[0].end_status = 128 + int(number)
