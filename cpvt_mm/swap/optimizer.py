"""Translates an optimizer's rules for parameters of the old backbone to the new one."""
from typing import Any

from mmengine.config import Config
from torch import nn

from cpvt_mm.models import CPVT

# No weight decay on position encodings and norms, as in the configs of this project.
DECAY_RULES = {'position_encoding': dict(decay_mult=0.), 'norm': dict(decay_mult=0.)}
# Total batch size that the learning rates of this project's schedules are for.
BATCH_SIZE = 16
# Names of position tables and encodings in backbones of the libraries.
POSITION_KEYS = ('absolute_pos_embed', 'relative_position_bias_table', 'pos_embed', 'pos_block', 'position_encodings')
# Learnt tokens of plain transformers.
TOKEN_KEYS = ('cls_token', 'mask_token')
# These constructors support the parameter names of a few backbones only.
LAYER_DECAY = ('LearningRateDecayOptimizerConstructor', 'LayerDecayOptimizerConstructor')


def translate_custom_keys(keys: dict[str, Any], backbone: nn.Module) -> dict[str, Any]:
    """Translates `paramwise_cfg.custom_keys` to the new backbone.

    A key for norms of the old backbone becomes keys for all norms of the new one, and a key for position tables one for
    position encodings. A key for tokens, or another of the backbone, is kept if it matches a parameter. Others stay.
    """
    names = [f'backbone.{name}' for name, _ in backbone.named_parameters()]
    translated = {}
    for key, value in keys.items():
        if key in POSITION_KEYS:
            translated['position_encoding'] = value
        elif key.startswith('backbone.') and 'norm' in key:
            translated |= dict.fromkeys(_norm_keys(backbone), value)
        elif not (key.startswith('backbone.') or key in TOKEN_KEYS) or any(key in name for name in names):
            translated[key] = value
    return translated


def _norm_keys(backbone: nn.Module) -> list[str]:
    """Returns a minimal list of keys that match all norms of the backbone, but no parameter of a head.

    A key matches all names that contain it, so norm1 and norm2 of a block share a key, and so do norms inside parts.
    """
    names = [f'backbone.{name}' for name, module in backbone.named_modules() if isinstance(module, nn.LayerNorm)]
    return list(dict.fromkeys(next((part for part in ('patch_embed.norm', 'attn.sr.norm') if name.endswith(part)),
                                   name.rstrip('0123456789')) for name in names))


def adapt_optimizer(wrapper: dict[str, Any], backbone: nn.Module) -> None:
    """Changes the rules of `optim_wrapper` for parameters of the old backbone, in place.

    For `CPVT`, layer-wise learning-rate decay keeps its rate and uses this project's constructor. For a pyramid, it is
    removed, because its rate is for another number of layers.
    """
    paramwise = wrapper.get('paramwise_cfg') or {}
    if (wrapper.get('constructor') or '').rpartition('.')[2] in LAYER_DECAY:
        # Layer-wise decay also exempts norms and biases from weight decay; that part is kept.
        wrapper['paramwise_cfg'] = dict(custom_keys=dict(DECAY_RULES))
        del wrapper['constructor']
        if isinstance(backbone, CPVT):
            wrapper['constructor'] = 'cpvt_mm.LayerDecayOptimWrapperConstructor'
            rate = paramwise.get('layer_decay_rate', paramwise.get('decay_rate'))  # mmseg has both names
            wrapper['paramwise_cfg']['layer_decay_rate'] = rate
    elif paramwise.get('custom_keys'):
        paramwise['custom_keys'] = translate_custom_keys(paramwise['custom_keys'], backbone)


def set_schedule(cfg: Config, backbone: nn.Module, optimizers: dict[str, dict[str, Any]]) -> None:
    """Sets AdamW with the project's rules, in place.

    `optimizers` has one for 'mmdet', also for other scopes, and one for 'mmseg'. An existing AdamW keeps its learning
    rate, and all else but the optimizer stays. If it is replaced, `eta_min` of schedulers is scaled with the learning
    rate.
    """
    if not cfg.get('optim_wrapper'):
        cfg.optim_wrapper = dict(type='OptimWrapper')
    wrapper = cfg.optim_wrapper
    old = wrapper.get('optimizer') or {}
    if old.get('type') != 'AdamW':
        new = wrapper['optimizer'] = dict(optimizers.get(cfg.get('default_scope'), optimizers['mmdet']))
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
        # mmengine applies only the longest matching key to a name.
        exempt = {**keys['backbone'], 'decay_mult': 0.}
        rules |= dict.fromkeys(['position_encoding', *_norm_keys(backbone)], exempt)
    wrapper['paramwise_cfg'] = {**paramwise, 'custom_keys': {**rules, **keys}}
