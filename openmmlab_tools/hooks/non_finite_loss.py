"""A hook that stops training if losses, gradients or weights are not finite."""
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

import torch
from mmengine.dist import all_gather_object, all_reduce, barrier, get_rank, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.runner import Runner
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from openmmlab_tools.checkpoints.fitting import inner
from openmmlab_tools.checkpoints.reading import not_finite
from openmmlab_tools.errors import UserError
from openmmlab_tools.registry import HOOKS
from openmmlab_tools.texts import some

from .checkpoint import BAD_ITERATIONS, saves_after_iteration

# Maximum number of images in a message; the log contains all.
MAX_IMAGES = 8


@HOOKS.register_module()
class NonFiniteLossHook(Hook):
    """Stops training after several consecutive bad iterations, and at once if the model itself is no longer finite.

    An iteration is bad if a loss or the gradient is not finite. A non-finite gradient is not applied.
    `DurableCheckpointHook` skips checkpoints after a bad iteration, except at the end of training.

    With a loss scale (`AmpOptimWrapper`), the scaler drops non-finite gradients to adapt its scale, so they count as
    bad only if the scale is below both 1 and its initial value.

    The hook checks weights and buffers in bad iterations, before a checkpoint is saved, and before a validation, which
    may save one. So a non-finite model is never saved, and older checkpoints are kept.

    All processes stop in the same iteration. The main process raises a UserError with the losses and images of the bad
    processes; the other processes exit with status 1.

    Args:
        patience: Training ends after this number of consecutive bad iterations. The weights do not change in a bad
            iteration. Defaults to 3.
    """

    # Runs after the loss is logged and before CheckpointHook.
    priority = 'LOW'

    def __init__(self, patience: int = 3) -> None:
        self.patience = patience

    def before_train(self, runner: Runner) -> None:
        self._count(runner, 0)
        # Infinity that may stay.
        buffers = inner(runner.model).named_buffers()
        self.infinite = {name: value.clone() for name, value in buffers if not_finite(value)}
        self._check_model(runner, 'before the first iteration, ')
        # Whether the next update is dropped, and whether a bad iteration that was counted already explains that.
        self.dropped, self.explained = False, False
        self.first_scale = _loss_scale(runner.optim_wrapper)
        if not isinstance(runner.optim_wrapper, AmpOptimWrapper):
            runner.optim_wrapper.optimizer.register_step_pre_hook(self._drop_bad_gradients)

    def _drop_bad_gradients(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        # DistributedDataParallel has averaged the gradients, so all processes make the same decision.
        parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if not get_total_norm(gradients, norm_type=math.inf).isfinite():
            self.dropped = True
            for parameter in parameters:
                parameter.grad = None  # optimizers skip parameters without a gradient

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: Mapping[str, Any] | None = None) -> None:
        losses = non_finite_losses(outputs or {})
        dropped = self.dropped or _loss_scale(runner.optim_wrapper) < min(self.first_scale, 1.)
        # With gradient accumulation, the update comes some iterations after the loss.
        is_bad = torch.tensor(float(bool(losses) or (dropped and not self.explained)))
        all_reduce(is_bad, 'max')
        if is_bad:
            self._count(runner, self.streak + 1)
            self._judge(runner, losses, image_paths(data_batch), dropped)
        self.explained = self.explained or bool(is_bad)
        if runner.optim_wrapper.should_update():  # there has been an update
            if not self.dropped and not self.explained:
                self._count(runner, 0)
            self.dropped = self.explained = False
        # Before the checkpoint, because mmengine's hook removes an older file first.
        if any(isinstance(hook, CheckpointHook) and saves_after_iteration(hook, runner) for hook in runner.hooks):
            self._check_model(runner)

    def before_val(self, runner: Runner) -> None:
        self._check_model(runner)

    after_train_epoch = before_val

    def _count(self, runner: Runner, streak: int) -> None:
        self.streak = streak
        runner.message_hub.update_info(BAD_ITERATIONS, streak)

    def _judge(self, runner: Runner, losses: Mapping[str, float], images: Sequence[str], dropped: bool) -> None:
        """Warns of the bad losses of each process, such as 'loss_mask is nan', or of the bad gradient, with the images
        of these processes, of all if only the shared gradient is bad. Stops training if need be.
        """
        clause = ' and '.join(f'{name} is {value}' for name, value in losses.items())
        rank = f' on rank {get_rank()}' if clause and get_world_size() > 1 else ''
        everyone: list[tuple[str, Sequence[str]]] = all_gather_object((clause + rank, images))
        bad = [(clause, images) for clause, images in everyone if clause]
        clauses = ', '.join(clause for clause, _ in bad) or 'losses are finite but the gradient is not'
        paths = [path for _, images in bad or everyone for path in images]
        event = f'in iteration {runner.iter + 1} {clauses}'
        short = event + _of_images(paths, MAX_IMAGES)
        runner.logger.warning(f'Bad iteration ({self.streak} in a row, {self.patience} end training): {event}'
                              f'{_of_images(paths, len(paths))}{", and the update is not applied" if dropped else ""}.')
        self._check_model(runner, f'{short}, so that ')
        if self.streak >= self.patience:
            _stop(runner, f'{short}, the last of {self.streak} such iterations in a row')

    def _check_model(self, runner: Runner, why: str = '') -> None:
        """Stops training if a weight or buffer is not finite in one of the processes."""
        names = (name for name, value in inner(runner.model).state_dict().items()
                 if isinstance(value, torch.Tensor) and not_finite(value, self.infinite.get(name)))
        if name := next(filter(None, all_gather_object(next(names, None))), None):
            _stop(runner, f'{why}{name} of the model is not finite')


def _stop(runner: Runner, event: str) -> NoReturn:
    saved = runner.message_hub.runtime_info.get('last_ckpt')
    message = (f'Training has stopped: {event}; '
               + (f'the last checkpoint, {saved}, is from before' if saved else 'no checkpoint had been saved')
               + ': lower the learning rate and start again (--resume keeps the old rate), or look at the images and '
               'their annotations.')
    runner.logger.error(message)
    # A launcher kills all processes when the first one ends; the barrier lets the main process write its log before.
    barrier()
    raise UserError(message) if is_main_process() else SystemExit(1)


def _loss_scale(wrapper: OptimWrapper) -> float:
    return wrapper.loss_scaler.get_scale() if isinstance(wrapper, AmpOptimWrapper) else 1.


def non_finite_losses(outputs: Mapping[str, Any]) -> dict[str, float]:
    """Returns the non-finite losses of a step, by name; their sum, 'loss', is included only if it is the only one."""
    losses = {name: torch.as_tensor(value).detach() for name, value in outputs.items() if 'loss' in name}
    if math.isfinite(sum(losses.values())):  # synchronizes with a GPU only once
        return {}
    bad = {name: value.item() for name, value in losses.items() if not value.isfinite()}
    return {name: value for name, value in bad.items() if name != 'loss'} or bad


def image_paths(data_batch: Any) -> tuple[str, ...]:
    """Returns the image paths of a batch, if its samples have them (`img_path` in `meta_keys` of the pipeline)."""
    samples = data_batch.get('data_samples') or () if isinstance(data_batch, Mapping) else ()
    if isinstance(samples, Mapping):  # semi-supervised training has branches
        samples = chain.from_iterable(samples.values())
    return tuple(sample.img_path for sample in samples if hasattr(sample, 'img_path'))


def _of_images(paths: Sequence[str], limit: int) -> str:
    if not paths:
        return ' (of images without img_path)'
    more = ', which the log names' if len(paths) > limit else ''
    return f' ({"images" if len(paths) > 1 else "image"} {some(paths, limit)}{more})'
