"""Compares optimizers and schedule of a checkpoint with a run that resumes from it, and tells the rate that stays."""
import copy
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from mmengine.hooks import EMAHook
from mmengine.optim import _ParamScheduler
from mmengine.optim.scheduler import ReduceOnPlateauParamScheduler
from mmengine.runner import EpochBasedTrainLoop, Runner

from openmmlab_runs.checkpoints.comparing import inner
from openmmlab_runs.engine.ranks import differences, end_all
from openmmlab_runs.engine.resuming import INSTEAD
from openmmlab_runs.errors import UserError, show

from .accumulation import wrappers

# The key of a checkpoint's `meta` for what `state_of` returns.
STATE = 'kind_of_state'
# The beginnings of the settings of a schedule.
SETTINGS = ('train_cfg.max_iters', 'train_cfg.max_epochs', 'param_scheduler')


def has_other_schedule(mine: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Returns whether the settings of two runs differ in what the learning rate depends on."""
    return any(mine.get(key) != others.get(key) for key in {**mine, **others} if key.startswith(SETTINGS))


def state_of(runner: Runner) -> dict[str, str]:
    """Returns what a resumed run must have like its checkpoint's, as texts by name: what counts its training, and its
    optimizers, each with its schedulers and the place of each parameter.
    """
    names = {parameter: name for name, parameter in inner(runner.model).named_parameters()}
    found = {'the unit of the schedule': 'epoch' if isinstance(runner.train_loop, EpochBasedTrainLoop) else 'iteration'}
    for key, wrapper in wrappers(runner).items():
        what, kinds = f'the optimizer {key}'.strip(), [type(one).__name__ for one in _schedulers(runner).get(key, ())]
        found |= {what: type(wrapper.optimizer).__name__, f'the schedule of {what}': ' and '.join(kinds) or 'none', **{
            f'the place of {names.get(parameter)} in {what}': f'number {index} of group {number}'
            for number, group in enumerate(wrapper.optimizer.param_groups)
            for index, parameter in enumerate(group['params'])}}
    return found


def check_resumes(runner: Runner, checkpoint: Mapping[str, Any], batches: int) -> None:
    """Ends all ranks with a UserError if a checkpoint, after `batches` of its last epoch, is of another kind of run, or
    of a longer one. Those of plain mmengine do not tell their kind.
    """
    meta, loop, now = checkpoint['meta'], runner.train_loop, state_of(runner)
    fault = differences(now, meta.get(STATE, now))
    saved, own = (len(schedulers or ()) for schedulers in (checkpoint.get('param_schedulers'), runner.param_schedulers))
    if saved != own and not fault:
        fault = f'param_scheduler has {own} entries, but the checkpoint has the state of {saved}'
    if 'ema_state_dict' in checkpoint and not any(isinstance(hook, EMAHook) for hook in runner.hooks):
        fault = 'EMAHook is not set, whose averages are the weights of the checkpoint'
    done, last, unit = meta['iter'], loop.max_iters, 'iters'
    if isinstance(loop, EpochBasedTrainLoop):
        done, last, unit = meta['epoch'] + (0 < len(loop.dataloader) <= batches), loop.max_epochs, 'epochs'
    if done > last:
        fault = f'train_cfg.max_{unit} is {last}, but the checkpoint was saved after {done}'
    if fault:
        end_all(UserError(f'training cannot resume, because in the config {fault}: set it as it was, or {INSTEAD}.'))
    if done == last:
        show(f'Training is complete already: the checkpoint was saved after all {last} of train_cfg.max_{unit}.')


def _schedulers(runner: Runner) -> dict[str, list[_ParamScheduler]]:
    """Returns the schedulers of each optimizer by its name; a single one is ''."""
    found = runner.param_schedulers or []
    return found if isinstance(found, dict) else {'': found}


def explain_schedule(runner: Runner) -> str:
    """Returns a sentence on the learning rate until the end of a resumed run, whose schedule is the checkpoint's."""
    rates = [f'{last_rate(wrapper.param_groups[-1], _schedulers(runner).get(name, ()), runner):.3g}'
             for name, wrapper in wrappers(runner).items()]
    return ('The learning rate follows the schedule of the checkpoint, not that of the config: in the last iteration, '
            f'{runner.max_iters}, it is {" and ".join(rates)}. For a new schedule, start from the '
            'weights: --cfg-options load_from=CHECKPOINT instead of --resume.')


def last_rate(group: dict[str, Any], schedulers: Sequence[_ParamScheduler], runner: Runner) -> float:
    """Returns the learning rate in the last iteration of a run, for the last group of an optimizer's parameters."""
    # mmengine keeps the rate without factors of parameters as the last group. Only this one is scheduled here, because
    # there may be hundreds of groups, and 100,000 iterations.
    group = {key: value for key, value in group.items() if key != 'params'}
    optimizer = SimpleNamespace(step=None, param_groups=[group])
    copies = [copy.copy(one) for one in schedulers if not isinstance(one, ReduceOnPlateauParamScheduler)]
    for one in copies:
        one.optimizer, one.base_values = optimizer, one.base_values[-1:]
    length = len(runner.train_dataloader) if isinstance(runner.train_loop, EpochBasedTrainLoop) else 0
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # schedulers miss the steps of the optimizer
        for step in range(runner.iter + 1, runner.max_iters):
            for one in copies:
                if not one.by_epoch or (length and step % length == 0):
                    one.step()
    return float(group['lr'])
