"""Groups of an optimizer: parameters with equal options are one group, and a state of other groups is rearranged."""
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import OPTIMIZERS
from torch import nn
from torch.optim import Optimizer

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
            show(f'note: the optimizer is built without fused=True, which torch refuses ({refusal}).')
        wrapper = super().__call__(model)
        if type(wrapper.optimizer).__module__.startswith('torch.optim.'):
            _merge(wrapper)
        return wrapper


def _refusal(cfg: dict[str, Any], model: nn.Module) -> str:
    """Returns why a fused optimizer cannot step, which torch would tell in the first iteration; '' if it can."""
    try:
        for device, dtype in {(one.device, one.dtype) for one in model.parameters() if one.requires_grad}:
            probe = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
            probe.grad = torch.zeros_like(probe)
            OPTIMIZERS.build(dict(cfg, params=[probe])).step()
    except (RuntimeError, TypeError) as error:
        return first_line(error) if 'fused' in str(error) else ''  # others are told when the optimizer is built
    return ''


def _merge(wrapper: OptimWrapper) -> None:
    groups = wrapper.optimizer.param_groups
    order = {parameter: place for place, parameter in enumerate(one for group in groups for one in group['params'])}
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
    return clip(sorted(parameters, key=lambda one: order.get(one, len(order))), **settings)


def _firsts(groups: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns for each group the number of the first one with the same options."""
    options = [{key: value for key, value in group.items() if key != 'params'} for group in groups]
    return [options.index(one) for one in options]


def regroup(state: dict[str, Any], places: Mapping[nn.Parameter, tuple[int, int]], optimizer: Optimizer
            ) -> list[int] | None:
    """Arranges the state of an optimizer, in place, for another one with the same parameters in other groups.

    Parameters that have had the same options must have the same ones now, whatever their values: these are the state's,
    but for `fused`, which changes no more than the last bits. `places` are the number of the group in the state, and
    that in the group, of each parameter. Returns the number in the state of each group of the optimizer; None, with
    nothing changed, if groups do not match.
    """
    theirs, ours = state['param_groups'], optimizer.param_groups
    old, new = _firsts(theirs), _firsts(ours)
    if {*places.values()} != {(number, index) for number, group in enumerate(theirs)
                              for index in range(len(group['params']))}:
        return None
    pairs = {(old[places[one][0]], new[number]) for number, group in enumerate(ours) for one in group['params']}
    if not len(pairs) == len({*old}) == len({*new}):
        return None
    chosen, groups, number, keys = [places[group['params'][0]][0] for group in ours], [], count(), dict[Any, int]()
    for group, first in zip(ours, chosen, strict=True):
        fused = {key: group[key] for key in ('fused',) if key in group}
        groups.append({**theirs[first], **fused, 'params': [next(number) for _ in group['params']]})
        keys.update(zip((theirs[place]['params'][index] for place, index in map(places.__getitem__, group['params'])),
                        groups[-1]['params'], strict=True))
    state['state'] = {keys.get(key, key): value for key, value in state['state'].items()}
    state['param_groups'] = groups
    return chosen
