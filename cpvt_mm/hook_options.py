"""Hooks that a config for own data gets if they are asked for: early stopping, and averaged weights."""
from mmengine.config import Config

from openmmlab_runs.config_walk import dicts
from openmmlab_runs.errors import UserError

# What must be gained for an improvement, for metrics that are shares and for those in percent.
LEAST_GAINS = {'mIoU': 0.1}
LEAST_GAIN = 0.001


def hook_options(base: Config, metric: str, early_stop: int | None, ema: bool) -> str:
    """Returns source for `default_hooks` of a config that inherits from `base`; '' if nothing is asked for.

    Args:
        base: The config to inherit from, which must not have such hooks already.
        metric: The metric that counts.
        early_stop: After how many validations without a better result training ends. None: never.
        ema: Whether to average the weights over about a twentieth of the iterations, `max_iters` of the config.

    Raises:
        UserError: If the base has such a hook.
    """
    named = dicts([*(base.get('custom_hooks') or ()), *(base.get('default_hooks') or {}).values()])
    for option, kind, is_asked in ('early_stop', 'EarlyStoppingHook', early_stop), ('ema', 'EMAHook', ema):
        if is_asked and any(str(hook.get('type')).rpartition('.')[2] == kind for hook in named):
            raise UserError(f'config {base.filename} has an {kind} already: leave {option} out, or change that one.')
    hooks = []
    if early_stop:
        hooks.append(f"early_stopping=dict(type='EarlyStoppingHook', monitor={metric!r}, patience={early_stop}, "
                     f"rule='greater',\n                        min_delta={LEAST_GAINS.get(metric, LEAST_GAIN)})")
    if ema:
        hooks.append("ema=dict(type='EMAHook', momentum=min(0.5, 20 / max_iters))")
    return ''.join(f',\n    {hook}' for hook in hooks)
