"""Gradients of an accumulation that is under way: `optim_wrapper.accumulative_counts` is more than 1."""
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from mmengine.dist import all_gather_object, all_reduce, get_world_size
from mmengine.model import is_model_wrapper
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from openmmlab_runs.checkpoints.comparing import inner

# The key of a checkpoint for the gradients, and for the backward passes until then of each optimizer.
ACCUMULATED = 'accumulated_gradients'


def wrappers(runner: Runner) -> dict[str, OptimWrapper]:
    """Returns the optimizer wrappers of a runner by name; a single one is ''."""
    found = runner.optim_wrapper
    return dict(found.items()) if isinstance(found, OptimWrapperDict) else {'': found}


def average_gradients(runner: Runner) -> None:
    """Replaces gradients by their mean of all ranks, because only the main process saves them. All ranks must call it.
    """
    if get_world_size() == 1 or not isinstance(runner.model, DistributedDataParallel):
        return
    parameters = dict(_parameters(runner))
    own = [name for name, parameter in parameters.items() if parameter.grad is not None]
    for name in dict.fromkeys(name for names in all_gather_object(own) for name in names):
        parameter = parameters[name]
        if parameter.grad is None:  # this rank has not used it
            parameter.grad = torch.zeros_like(parameter)
        all_reduce(parameter.grad, 'mean')


def accumulated(runner: Runner) -> dict[str, Any]:
    """Returns the content of a checkpoint for the accumulation that is under way; {} if there is none, and for FSDP."""
    gradients = {name: parameter.grad.detach().cpu() for name, parameter in _parameters(runner)
                 if parameter.grad is not None}
    counts = {name: wrapper.inner_count for name, wrapper in wrappers(runner).items()}
    return {ACCUMULATED: dict(gradients=gradients, counts=counts)} if gradients else {}


def put_back(runner: Runner, gradients: Mapping[str, Tensor]) -> None:
    for name, parameter in inner(runner.model).named_parameters():
        if name in gradients:
            parameter.grad = gradients[name].to(parameter)


def _parameters(runner: Runner) -> Iterator[tuple[str, nn.Parameter]]:
    if is_model_wrapper(runner.model) and not isinstance(runner.model, DistributedDataParallel):
        return
    trained = {parameter for wrapper in wrappers(runner).values() for group in wrapper.optimizer.param_groups
               for parameter in group['params']}
    yield from ((name, one) for name, one in inner(runner.model).named_parameters() if one in trained)
