"""Translates an optimizer's rules for parameters of the old backbone to the new one."""
import re
from typing import Any

from mmengine.config import Config
from torch import nn

# No weight decay on position encodings and norms, as in the configs of this project.
DECAY_RULES = {'position_encoding': dict(decay_mult=0.), 'norm': dict(decay_mult=0.)}
# The optimizers of the original's 1x schedule on COCO and of Swin's on ADE20K, for BATCH_SIZE images.
BATCH_SIZE = 16
OPTIMIZERS = {
    'mmdet': dict(type='AdamW', lr=2e-4, weight_decay=1e-4),
    'mmseg': dict(type='AdamW', lr=6e-5, weight_decay=0.01),
}
# Names of position tables and encodings in backbones of the libraries.
POSITION_KEYS = ('absolute_pos_embed', 'relative_position_bias_table', 'pos_embed', 'pos_block', 'position_encodings')
# These constructors know the names of a few backbones only.
LAYER_DECAY = ('LearningRateDecayOptimizerConstructor', 'LayerDecayOptimizerConstructor')


def translate_custom_keys(keys: dict[str, Any], backbone: nn.Module) -> dict[str, Any]:
    """Translates `paramwise_cfg.custom_keys` to the new backbone.

    A key for norms of the old backbone becomes keys for all norms of the new one. A key for its position tables becomes
    one for position encodings. Other keys that begin with `backbone.` stay if they match a parameter. All else stays.

    Args:
        keys: The keys of the config.
        backbone: The new backbone.
    """
    names = [f'backbone.{name}' for name, _ in backbone.named_parameters()]
    translated = {}
    for key, value in keys.items():
        if key in POSITION_KEYS:
            translated['position_encoding'] = value
        elif key.startswith('backbone.') and 'norm' in key:
            translated |= dict.fromkeys(_norm_keys(backbone), value)
        elif not key.startswith('backbone.') or any(key in name for name in names):
            translated[key] = value
    return translated


def _norm_keys(backbone: nn.Module) -> list[str]:
    """Returns the fewest keys that match all its norms, but no parameter of a head.

    A key matches all names that contain it.
    """
    norms = [f'backbone.{name}' for name, module in backbone.named_modules() if isinstance(module, nn.LayerNorm)]
    return list(dict.fromkeys(re.sub(r'^.*(patch_embed|attn\.sr)\.norm$|\d+$', _shorten, name) for name in norms))


def _shorten(match: re.Match) -> str:
    return f'{match[1]}.norm' if match[1] else ''  # norm1 and norm2 of a block have one key


def adapt_optimizer(wrapper: dict[str, Any], backbone: nn.Module) -> None:
    """Changes the rules of `optim_wrapper` for parameters of the old backbone, in place."""
    paramwise = wrapper.get('paramwise_cfg') or {}
    if (wrapper.get('constructor') or '').rpartition('.')[2] in LAYER_DECAY:
        # Layer-wise decay also exempts norms and biases from weight decay; that part is kept.
        del wrapper['constructor']
        wrapper['paramwise_cfg'] = dict(custom_keys=dict(DECAY_RULES))
    elif paramwise.get('custom_keys'):
        paramwise['custom_keys'] = translate_custom_keys(paramwise['custom_keys'], backbone)


def set_schedule(cfg: Config, backbone: nn.Module) -> None:
    """Sets AdamW with the project's rules, in place.

    The learning rate of an AdamW that is there stays, and so do rules for other parameters, accumulation, clipping and
    mixed precision. With a new one, the rates that schedulers end at change in proportion.
    """
    if not cfg.get('optim_wrapper'):
        cfg.optim_wrapper = dict(type='OptimWrapper')
    wrapper = cfg.optim_wrapper
    old = wrapper.get('optimizer') or {}
    if old.get('type') != 'AdamW':
        new = wrapper['optimizer'] = dict(OPTIMIZERS.get(cfg.get('default_scope'), OPTIMIZERS['mmdet']))
        schedulers = cfg.get('param_scheduler') or []
        for scheduler in [schedulers] if isinstance(schedulers, dict) else schedulers:
            if scheduler.get('eta_min') and old.get('lr'):
                scheduler['eta_min'] *= new['lr'] / old['lr']
        if cfg.get('auto_scale_lr'):
            cfg.auto_scale_lr['base_batch_size'] = BATCH_SIZE
    paramwise = wrapper.get('paramwise_cfg') or {}
    keys = paramwise.get('custom_keys') or {}
    rules = dict(DECAY_RULES)
    if 'backbone' in keys:
        # mmengine applies only the longest of the keys that match a name.
        exempt = {**keys['backbone'], 'decay_mult': 0.}
        rules |= dict.fromkeys(['position_encoding', *_norm_keys(backbone)], exempt)
    wrapper['paramwise_cfg'] = {**paramwise, 'custom_keys': {**rules, **keys}}
