"""The end of a training whose losses are not finite."""
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from mmengine.dist import all_gather_object, all_reduce, barrier, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.optim import AmpOptimWrapper
from mmengine.runner import Runner
from torch import nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from cpvt_mm.errors import UserError
from cpvt_mm.registry import HOOKS

# Images named in a sentence; the log has all.
MAX_IMAGES = 8


@dataclass(frozen=True)
class Report:
    """What one process saw in an iteration.

    Attributes:
        losses: The losses that are not finite, by name.
        images: Paths of the batch.
        state: The first weight or buffer of the model that is not finite; '' if all are.
    """
    losses: dict[str, float]
    images: tuple[str, ...]
    state: str


@HOOKS.register_module()
class StopOnNonFiniteLoss(Hook):
    """Stops training after several bad iterations in a row; no checkpoint is written from the first of them on.

    An iteration is bad if any loss is not finite, or if the gradient is not. Such a gradient is not applied, so that
    weights stay those of the last good iteration, and one bad batch can pass. With a loss scale (`AmpOptimWrapper`) the
    scaler drops such gradients by itself; they are how it finds its scale, and only losses count.

    Training stops at once if the model itself is no longer finite (a norm's running mean has seen the bad batch), or
    if a checkpoint, a validation or the end is due: what would be saved gives no finite loss, and saving it may remove
    one that does. So the checkpoint that `last_checkpoint` names is always from before the first bad iteration.

    In distributed training a bad iteration of one process is one of all, and all stop in the same iteration: the main
    process with a UserError that names losses and images of the bad ones, the others with status 1.

    Args:
        patience: Bad iterations in a row that end training. Weights do not change between them, so each tries the
            same weights on another batch: where three fail, it is hardly the batch. Defaults to 3.
    """

    # After the loss is logged, before CheckpointHook.
    priority = 'LOW'

    def __init__(self, patience: int = 3) -> None:
        if patience < 1:
            raise UserError(f'patience of StopOnNonFiniteLoss is {patience}, but must be at least 1.')
        self.patience = patience
        self.streak = 0
        self.dropped = False
        self.what = ''

    def before_train(self, runner: Runner) -> None:
        self.streak, self.dropped = 0, False
        if not isinstance(runner.optim_wrapper, AmpOptimWrapper):
            runner.optim_wrapper.optimizer.register_step_pre_hook(self._drop_bad_gradients)

    def _drop_bad_gradients(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        """Before each update. DistributedDataParallel has averaged the gradients: all processes decide alike."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not get_total_norm(gradients, norm_type=math.inf).isfinite():
            self.dropped = True
            for parameter in parameters:
                parameter.grad = None  # optimizers leave such parameters alone

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: Mapping[str, torch.Tensor] | None = None) -> None:
        losses = non_finite_losses(outputs or {})
        dropped, self.dropped = self.dropped, False
        is_bad = torch.tensor(float(bool(losses) or dropped))
        all_reduce(is_bad, 'max')
        if not is_bad:
            # While gradients accumulate, a bad one may be among them.
            self.streak *= not runner.optim_wrapper.should_update()
            return
        self.streak += 1
        reports = all_gather_object(Report(losses, image_paths(data_batch), non_finite_state(runner.model)))
        now = f'in iteration {runner.iter + 1} {describe(reports)}'
        self.what = f'{now}{_and_images(reports, MAX_IMAGES)}'
        runner.logger.warning(f'Bad iteration ({self.streak} in a row, {self.patience} end training): {now}'
                              f'{_and_images(reports)}{", and the update is not applied" if dropped else ""}.')
        state = next((report.state for report in reports if report.state), '')
        if state:
            self._stop(runner, f'so that {state} of the model is no longer finite')
        elif self.streak >= self.patience:
            self._stop(runner, f'the last of {self.streak} such iterations in a row')
        elif _checkpoint_is_due(runner):
            self._stop(runner, 'when a checkpoint was due')

    def before_val(self, runner: Runner) -> None:
        if self.streak:
            self._stop(runner, 'when a validation was due')

    def after_train_epoch(self, runner: Runner) -> None:
        if self.streak:
            self._stop(runner, 'at the end of an epoch')

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """For hooks that save at other times than `CheckpointHook`."""
        if self.streak:
            raise UserError(self._message(runner, 'when a checkpoint was due'))  # in the main process only

    def _stop(self, runner: Runner, why: str) -> NoReturn:
        message = self._message(runner, why)
        runner.logger.error(message)
        # A launcher ends all processes when it sees the first end: by then the main one has written its log.
        barrier()
        raise UserError(message) if is_main_process() else SystemExit(1)

    def _message(self, runner: Runner, why: str) -> str:
        saved = runner.message_hub.runtime_info.get('last_ckpt')
        return (f'Training has stopped: {self.what}, {why}; '
                + (f'the last checkpoint, {saved}, is from before' if saved else 'no checkpoint had been saved')
                + ': lower the learning rate, or look at these images and their annotations.')


def non_finite_losses(outputs: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The losses that are not finite, of a step's outputs; their sum, 'loss', only if no other is."""
    losses = {name: value.item() for name, value in outputs.items() if 'loss' in name}
    bad = {name: value for name, value in losses.items() if not math.isfinite(value)}
    return {name: value for name, value in bad.items() if name != 'loss'} or bad


def non_finite_state(model: nn.Module) -> str:
    """The name of the first weight or buffer with a value that is not finite; '' if there is none."""
    return next((name for name, value in model.state_dict().items()
                 if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.isfinite().all()), '')


def image_paths(data_batch: Any) -> tuple[str, ...]:
    """Paths of a batch's images, as far as its samples have them (`img_path` in `meta_keys` of the pipeline)."""
    samples = data_batch.get('data_samples', ()) if isinstance(data_batch, Mapping) else ()
    return tuple(sample.img_path for sample in samples if hasattr(sample, 'img_path'))


def describe(reports: Sequence[Report]) -> str:
    """The bad losses of each process, as a clause: 'loss_mask is nan'; the gradient, if there is none."""
    clauses = [' and '.join(f'{name} is {value}' for name, value in report.losses.items())
               + (f' on rank {rank}' if get_world_size() > 1 else '')
               for rank, report in enumerate(reports) if report.losses]
    return ', '.join(clauses) or 'losses are finite but the gradient is not'


def _and_images(reports: Sequence[Report], limit: int | None = None) -> str:
    """The images of the bad processes; of all, if only the gradient, which they share, is bad."""
    bad = [report for report in reports if report.losses] or reports
    paths = [path for report in bad for path in report.images]
    if not paths:
        return ' (of images without img_path)'
    more = '' if limit is None or len(paths) <= limit else f' and {len(paths) - limit} more, which the log names'
    return f' ({"images" if len(paths) > 1 else "image"} {", ".join(paths[:limit])}{more})'


def _checkpoint_is_due(runner: Runner) -> bool:
    """Whether a CheckpointHook saves after this iteration. It removes an older file before, when it is too late."""
    return any(not hook.by_epoch and (hook.every_n_train_iters(runner, hook.interval, hook.save_begin)
                                      or (hook.save_last and hook.is_last_train_iter(runner)))
               for hook in runner.hooks if isinstance(hook, CheckpointHook))
