"""A hook that stops training whose losses are not finite."""
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import torch
from mmengine.dist import all_gather_object, all_reduce, barrier, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.model import is_model_wrapper
from mmengine.optim import AmpOptimWrapper, OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch import nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from cpvt_mm.errors import UserError
from cpvt_mm.registry import HOOKS

from .checkpoint import BAD_ITERATIONS

# Images named in a sentence; the log has all.
MAX_IMAGES = 8


@dataclass(frozen=True)
class Report:
    """Findings of one process in an iteration.

    Attributes:
        losses: The losses that are not finite, by name.
        images: The paths of the batch.
    """
    losses: dict[str, float]
    images: tuple[str, ...]


@HOOKS.register_module()
class StopOnNonFiniteLoss(Hook):
    """Stops training after several bad iterations in a row, and at once if the model itself is no longer finite.

    An iteration is bad if any loss is not finite, or if the gradient is not. Such a gradient is not applied, so that
    weights stay those of the last good iteration, and one bad batch can pass. A checkpoint that is due meanwhile is
    left out by `DurableCheckpointHook`, unless training is at its end: the last good iteration may be what has spoilt
    the weights. With a loss scale (`AmpOptimWrapper`) the scaler drops such gradients by itself; they are how it finds
    its scale, so they are bad only once that has fallen below 1 and where it began.

    The model is no longer finite if a norm's running mean has seen a bad batch, or a finite gradient has blown up a
    weight. The hook looks in bad iterations, and before a checkpoint is saved or a validation begins, which may save
    one. So no such model is saved, and older checkpoints stay.

    In distributed training an iteration that is bad in one process is bad for all, and all stop in the same iteration:
    the main process with a UserError that names losses and images of the bad ones, the others with status 1.

    Args:
        patience: Bad iterations in a row that end training. Weights do not change between them, so each tries the
            same weights on another batch: if three fail, the batch is hardly the cause. Defaults to 3.
    """

    # After the loss is logged, before CheckpointHook.
    priority = 'LOW'

    def __init__(self, patience: int = 3) -> None:
        if patience < 1:
            raise UserError(f'patience of StopOnNonFiniteLoss is {patience}, but must be at least 1.')
        self.patience = patience

    def before_train(self, runner: Runner) -> None:
        self._count(runner, 0)
        # The next update: whether it was left out, and whether a loss that counts already is to blame.
        self.dropped, self.explained = False, False
        wrapper = runner.optim_wrapper
        self.wrappers: list[OptimWrapper] = (
            list(wrapper.values()) if isinstance(wrapper, OptimWrapperDict) else [wrapper])
        self.first_scales = [_loss_scale(wrapper) for wrapper in self.wrappers]
        for wrapper in self.wrappers:
            if not isinstance(wrapper, AmpOptimWrapper):
                wrapper.optimizer.register_step_pre_hook(self._drop_bad_gradients)

    def _drop_bad_gradients(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        """Runs before each update. DistributedDataParallel has averaged the gradients: all processes decide alike."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not get_total_norm(gradients, norm_type=math.inf).isfinite():
            self.dropped = True
            for parameter in parameters:
                parameter.grad = None  # optimizers leave such parameters alone

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: Mapping[str, Any] | None = None) -> None:
        losses = non_finite_losses(outputs or {})
        dropped = self.dropped or any(_loss_scale(wrapper) < min(first, 1.) for wrapper, first in
                                      zip(self.wrappers, self.first_scales, strict=True))
        # While gradients accumulate, the update comes some iterations after the loss.
        is_bad = torch.tensor(float(bool(losses) or (dropped and not self.explained)))
        all_reduce(is_bad, 'max')
        if is_bad:
            self._count(runner, self.streak + 1)
            self._judge(runner, all_gather_object(Report(losses, image_paths(data_batch))), dropped)
        self.explained = self.explained or bool(is_bad)
        if all(wrapper.should_update() for wrapper in self.wrappers):  # there has been one
            if not self.dropped and not self.explained:
                self._count(runner, 0)
            self.dropped = self.explained = False
        if _checkpoint_is_due(runner):
            self._check_model(runner)

    def before_val(self, runner: Runner) -> None:
        self._check_model(runner)

    def after_train_epoch(self, runner: Runner) -> None:
        self._check_model(runner)

    def _count(self, runner: Runner, streak: int) -> None:
        self.streak = streak
        runner.message_hub.update_info(BAD_ITERATIONS, streak)

    def _judge(self, runner: Runner, reports: Sequence[Report], dropped: bool) -> None:
        """Stops after a bad iteration, or warns."""
        what = f'in iteration {runner.iter + 1} {describe(reports)}'
        short = what + _and_images(reports, MAX_IMAGES)
        runner.logger.warning(f'Bad iteration ({self.streak} in a row, {self.patience} end training): {what}'
                              f'{_and_images(reports)}{", and the update is not applied" if dropped else ""}.')
        self._check_model(runner, f'{short}, so that ')
        if self.streak >= self.patience:
            _stop(runner, f'{short}, the last of {self.streak} such iterations in a row')

    def _check_model(self, runner: Runner, why: str = '') -> None:
        """Stops if a weight or buffer is not finite in one of the processes."""
        name = next(filter(None, all_gather_object(non_finite_state(runner.model))), None)
        if name:
            _stop(runner, f'{why}{name} of the model is no longer finite')


def _stop(runner: Runner, what: str) -> NoReturn:
    saved = runner.message_hub.runtime_info.get('last_ckpt')
    message = (f'Training has stopped: {what}; '
               + (f'the last checkpoint, {saved}, is from before' if saved else 'no checkpoint had been saved')
               + ': lower the learning rate and start again (--resume keeps the old rate), or look at the images and '
               'their annotations.')
    runner.logger.error(message)
    # A launcher ends all processes when it sees the first end: by then the main one has written its log.
    barrier()
    raise UserError(message) if is_main_process() else SystemExit(1)


def _loss_scale(wrapper: OptimWrapper) -> float:
    return wrapper.loss_scaler.get_scale() if isinstance(wrapper, AmpOptimWrapper) else 1.


def non_finite_losses(outputs: Mapping[str, Any]) -> dict[str, float]:
    """Finds the losses of a step that are not finite; their sum, 'loss', is named only if no other is."""
    losses = {name: torch.as_tensor(value).detach() for name, value in outputs.items() if 'loss' in name}
    if math.isfinite(sum(losses.values())):  # waits for a GPU once
        return {}
    bad = {name: value.item() for name, value in losses.items() if not value.isfinite()}
    return {name: value for name, value in bad.items() if name != 'loss'} or bad


def non_finite_state(model: nn.Module) -> str:
    """Finds the first weight or buffer with a value that is not finite; returns its name, or ''."""
    inner: nn.Module = model.module if is_model_wrapper(model) else model  # type: ignore[assignment]
    return next((name for name, value in inner.state_dict().items()
                 if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.isfinite().all()), '')


def image_paths(data_batch: Any) -> tuple[str, ...]:
    """Reads the paths of a batch's images, if its samples have them (`img_path` in `meta_keys` of the pipeline)."""
    samples = data_batch.get('data_samples') or () if isinstance(data_batch, Mapping) else ()
    if isinstance(samples, Mapping):  # semi-supervised training has branches
        samples = chain.from_iterable(samples.values())
    return tuple(sample.img_path for sample in samples if hasattr(sample, 'img_path'))


def describe(reports: Sequence[Report]) -> str:
    """Names the bad losses of each process in a clause such as 'loss_mask is nan', or else the gradient."""
    clauses = [' and '.join(f'{name} is {value}' for name, value in report.losses.items())
               + (f' on rank {rank}' if get_world_size() > 1 else '')
               for rank, report in enumerate(reports) if report.losses]
    return ', '.join(clauses) or 'losses are finite but the gradient is not'


def _and_images(reports: Sequence[Report], limit: int | None = None) -> str:
    """Names the images of the bad processes, or of all if only the gradient, which they share, is bad."""
    bad = [report for report in reports if report.losses] or reports
    paths = [path for report in bad for path in report.images]
    if not paths:
        return ' (of images without img_path)'
    more = '' if limit is None or len(paths) <= limit else f' and {len(paths) - limit} more, which the log names'
    return f' ({"images" if len(paths) > 1 else "image"} {", ".join(paths[:limit])}{more})'


def _checkpoint_is_due(runner: Runner) -> bool:
    """Whether a CheckpointHook saves after this iteration. mmengine's removes an older file first: look before it."""
    return any(not hook.by_epoch and (hook.every_n_train_iters(runner, hook.interval, hook.save_begin)
                                      or (hook.save_last and hook.is_last_train_iter(runner)))
               for hook in runner.hooks if isinstance(hook, CheckpointHook))
