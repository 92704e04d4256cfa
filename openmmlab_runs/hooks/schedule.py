"""The learning rate when a run is resumed with other settings of its schedule."""
import copy
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from mmengine.optim import _ParamScheduler
from mmengine.optim.scheduler import ReduceOnPlateauParamScheduler
from mmengine.runner import EpochBasedTrainLoop, Runner

from .accumulation import wrappers

# The beginnings of the settings of a schedule.
SETTINGS = ('train_cfg.max_iters', 'train_cfg.max_epochs', 'param_scheduler')


def has_other_schedule(mine: Mapping[str, str], others: Mapping[str, str]) -> bool:
    """Returns whether the settings of two runs differ in what the learning rate depends on."""
    return any(mine.get(key) != others.get(key) for key in {**mine, **others} if key.startswith(SETTINGS))


def explain_schedule(runner: Runner) -> str:
    """Returns a sentence on the learning rate until the end of a resumed run, whose schedule is the checkpoint's."""
    schedulers = runner.param_schedulers or []
    by_optimizer = schedulers if isinstance(schedulers, dict) else {'': schedulers}
    rates = [f'{last_rate(wrapper.param_groups[-1], by_optimizer.get(name, ()), runner):.3g}'
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
