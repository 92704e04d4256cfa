"""Compares a resumed run with the run of its checkpoint: settings, optimizer, schedules, and gradients that are still
being accumulated (if `optim_wrapper.accumulative_counts` is more than 1).
"""
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, all_reduce, get_world_size
from mmengine.hooks import EMAHook
from mmengine.model import is_model_wrapper
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from openmmlab_tools.checkpoints.fitting import inner
from openmmlab_tools.config_walk import walk
from openmmlab_tools.engine.ranks import end_all
from openmmlab_tools.engine.work_dir import INSTEAD
from openmmlab_tools.errors import UserError, show
from openmmlab_tools.redaction import is_secret, redact

# The key of a checkpoint's `meta` for what `state_of` returns.
STATE = 'kind_of_state'
# The name in it of the place of a parameter.
PLACE = 'the place of {} in the optimizer'
# The key of a checkpoint for the gradients, and for the backward passes until then.
ACCUMULATED = 'accumulated_gradients'
# Parts of a config on which the weights depend, and what in them they do not depend on.
PARTS = ('model', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'train_dataloader', 'custom_hooks', 'auto_scale_lr')
LOADING = ('num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor', 'worker_init_fn')
# Constructors with the same weights: of plain mmengine, and of `prepare`.
SAME_WEIGHTS = ("'DefaultOptimWrapperConstructor'", "'openmmlab_tools.MergedOptimWrapperConstructor'",
                "'openmmlab_tools.UnmergedOptimWrapperConstructor'")
DATA_ROOT = 'data_root'  # machines may have their data in different folders
MAX_NAMED = 4
# The beginnings of the settings of a schedule.
SCHEDULE = ('train_cfg.max_iters', 'train_cfg.max_epochs', 'param_scheduler')


def settings(cfg: Config) -> dict[str, str]:
    """Returns the settings of a config on which the weights depend, as texts by dotted key, without secrets."""
    parts, _ = redact({name: cfg.to_dict().get(name) for name in PARTS})
    texts = {'.'.join(map(str, (*path, key))): re.sub(' at 0x[0-9a-f]+', '', repr(value))  # functions and objects
             for path, part in walk(parts) for key, value in part.items()
             if value is not None and key != DATA_ROOT and not any(walk(value))}  # None is as good as no value
    return {key: value for key, value in texts.items()
            if value not in SAME_WEIGHTS and key.removeprefix('train_dataloader.') not in LOADING}


def differences(mine: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Returns a clause with the keys whose values differ, such as 'train_cfg.max_iters is 4 (not 8)'; '' if none do."""
    # Texts end with a quote, containers with a bracket: others, such as numbers, are no secrets.
    mine, others = ({key: redact(value)[0] for key, value in part.items() if not (
        is_secret(key) and value.endswith(('"', "'", ')', ']', '}')))} for part in (mine, others))
    keys = [key for key in {**others, **mine} if mine.get(key) != others.get(key)]
    named = ', '.join(f'{key} is {mine.get(key, "not set")} (not {others.get(key, "set")})' for key in keys[:MAX_NAMED])
    return named + (f', and {len(keys) - MAX_NAMED} more' if len(keys) > MAX_NAMED else '')


def state_of(runner: Runner) -> dict[str, str]:
    """Returns what a resumed run must have like its checkpoint's, as texts by name: what counts its training, and its
    optimizer, with its schedulers and the place of each parameter.
    """
    names = {parameter: name for name, parameter in inner(runner.model).named_parameters()}
    optimizer = runner.optim_wrapper.optimizer
    return {
        'the unit of the schedule': 'epoch' if isinstance(runner.train_loop, EpochBasedTrainLoop) else 'iteration',
        'the optimizer': type(optimizer).__name__, 'the schedule of the optimizer': ' and '.join(
            type(scheduler).__name__ for scheduler in runner.param_schedulers or ()) or 'none',
        **{PLACE.format(names.get(parameter)): f'number {index} of group {number}'
           for number, group in enumerate(optimizer.param_groups) for index, parameter in enumerate(group['params'])}}


def check_resumes(runner: Runner, checkpoint: Mapping[str, Any], batches: int) -> None:
    """Ends all ranks with a UserError if a checkpoint comes from a run with other settings, or from a longer run.

    `batches` is the number of batches in its last epoch. Checkpoints of plain mmengine do not contain the settings.
    """
    meta, loop, now = checkpoint['meta'], runner.train_loop, state_of(runner)
    fault = differences(now, meta.get(STATE, now))
    for saved, group in zip(checkpoint['optimizer']['param_groups'], runner.optim_wrapper.param_groups, strict=False):
        saved.update({key: group[key] for key in ('fused',) if key in group})  # which changes only the last bits
    states, entries = len(checkpoint.get('param_schedulers') or ()), len(runner.param_schedulers or ())
    if states != entries and not fault:
        fault = f'param_scheduler has {entries} entries, but the checkpoint has the state of {states}'
    if 'ema_state_dict' in checkpoint and not any(isinstance(hook, EMAHook) for hook in runner.hooks):
        fault = 'EMAHook is not set, whose averages are the weights of the checkpoint'
    done, last, unit = meta['iter'], loop.max_iters, 'iters'
    if isinstance(loop, EpochBasedTrainLoop):
        done, last, unit = meta['epoch'] + (0 < len(loop.dataloader) <= batches), loop.max_epochs, 'epochs'
    if done > last:
        fault = f'train_cfg.max_{unit} is {last}, but the checkpoint was saved after {done}'
    if fault:
        end_all(UserError(f'training cannot resume, because in the config {fault}: restore the old value, or '
                          f'{INSTEAD}.'))
    if done == last:
        show(f'Training is complete already: the checkpoint was saved after all {last} of train_cfg.max_{unit}.')


def average_gradients(runner: Runner) -> None:
    """Replaces gradients by their mean of all ranks, because only the main process saves them. All ranks must call it.
    """
    if get_world_size() == 1 or not isinstance(runner.model, DistributedDataParallel):
        return
    parameters = dict(_parameters(runner))
    with_gradient = [name for name, parameter in parameters.items() if parameter.grad is not None]
    for name in dict.fromkeys(name for names in all_gather_object(with_gradient) for name in names):
        parameter = parameters[name]
        if parameter.grad is None:  # this rank has not used it
            parameter.grad = torch.zeros_like(parameter)
        all_reduce(parameter.grad, 'mean')


def accumulated(runner: Runner) -> dict[str, Any]:
    """Returns the content of a checkpoint for the accumulation that is under way; {} if there is none, and for FSDP."""
    gradients = {name: parameter.grad.detach().cpu() for name, parameter in _parameters(runner)
                 if parameter.grad is not None}
    return {ACCUMULATED: dict(gradients=gradients, counts={'': runner.optim_wrapper.inner_count})} if gradients else {}


def _parameters(runner: Runner) -> Iterator[tuple[str, nn.Parameter]]:
    if is_model_wrapper(runner.model) and not isinstance(runner.model, DistributedDataParallel):
        return
    trained = {parameter for group in runner.optim_wrapper.optimizer.param_groups for parameter in group['params']}
    yield from ((name, parameter) for name, parameter in inner(runner.model).named_parameters() if parameter in trained)
