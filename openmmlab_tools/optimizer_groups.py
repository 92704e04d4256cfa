"""Puts parameters with equal options into one optimizer group. A resumed run keeps the groups of its checkpoint."""
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIMIZERS
from torch import nn

from .errors import first_line, show
from .registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MergedOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Builds an optimizer as mmengine does, then makes one group of those with equal options.

    With `paramwise_cfg`, mmengine makes a group for each parameter, and a step of torch's optimizers takes each by
    itself. Merged groups are in the order of their first parameter. Gradients are clipped in the order of mmengine's
    groups, so weights are the same to the bit. Groups of optimizers that are not torch's stay.
    """

    def __call__(self, model: nn.Module) -> OptimWrapper:
        if self.optimizer_cfg.get('fused') and (refusal := _refusal(self.optimizer_cfg, model)):
            self.optimizer_cfg.pop('fused')
            show('note: the optimizer is built without fused=True, because torch does not support it here '
                 f'({refusal}).')
        wrapper = super().__call__(model)
        if type(wrapper.optimizer).__module__.startswith('torch.optim.'):
            _merge(wrapper)
        return wrapper


def _refusal(cfg: dict[str, Any], model: nn.Module) -> str:
    """Returns why a fused optimizer cannot step, which torch would tell in the first iteration; '' if it can."""
    try:
        for device, dtype in {(parameter.device, parameter.dtype) for parameter in model.parameters()
                              if parameter.requires_grad}:
            probe = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
            probe.grad = torch.zeros_like(probe)
            OPTIMIZERS.build(dict(cfg, params=[probe])).step()
    except (RuntimeError, TypeError) as error:
        return first_line(error) if 'fused' in str(error) else ''  # others are told when the optimizer is built
    return ''


def _merge(wrapper: OptimWrapper) -> None:
    groups = wrapper.optimizer.param_groups
    order = {parameter: place for place, parameter in enumerate(
        parameter for group in groups for parameter in group['params'])}
    firsts = _firsts(groups)
    for number, first in enumerate(firsts):
        if number != first:
            groups[first]['params'] += groups[number]['params']
    groups[:] = [groups[first] for first in dict.fromkeys(firsts)]
    if hasattr(wrapper, 'clip_func'):
        wrapper.clip_func = partial(_clip, wrapper.clip_func, order)


def _clip(clip: Callable[..., Any], order: Mapping[nn.Parameter, int], parameters: Sequence[nn.Parameter],
          **settings: Any) -> Any:
    """Clips gradients in the given order of parameters, with which the last bits of their norm change."""
    return clip(sorted(parameters, key=lambda parameter: order.get(parameter, len(order))), **settings)


def _firsts(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns for each group the number of the first group with the same options."""
    options = [{key: value for key, value in group.items() if key != 'params'} for group in groups]
    return [options.index(option) for option in options]


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class UnmergedOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """Builds mmengine's groups, one for each parameter, in runs that resume a checkpoint of mmengine."""
