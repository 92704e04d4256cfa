"""The optimizer of a config for a new backbone: rules for its parameters, and AdamW."""
from typing import Any

from mmengine.config import Config
from torch import nn

from cpvt_mm.models import CPVT, PyramidCPVT
from openmmlab_tools.config_walk import dicts

# The optimizers of schedules. For detectors, they are from the original's 1x schedule on COCO
# and from ViTDet; for segmentors, from Swin's schedule on ADE20K.
OF_SEGMENTORS = dict(type='AdamW', lr=6e-5, weight_decay=0.01, fused=True)
OF_DETECTORS = {PyramidCPVT: dict(type='AdamW', lr=2e-4, weight_decay=1e-4, fused=True),
                CPVT: dict(type='AdamW', lr=1e-4, weight_decay=0.1, fused=True)}

# Optimizer constructors of mmdet and mmseg that support only a few backbones, because they depend on parameter names.
LAYER_DECAY = ('LearningRateDecayOptimizerConstructor', 'LayerDecayOptimizerConstructor')
# No weight decay on position encodings and norms, as in the configs of this project.
DECAY_RULES = {'position_encoding': dict(decay_mult=0.), 'norm': dict(decay_mult=0.)}
# Total batch size that the learning rates of this project's schedules are for.
BATCH_SIZE = 16
# Names of position tables and encodings in backbones of the libraries.
POSITION_KEYS = ('absolute_pos_embed', 'relative_position_bias_table', 'pos_embed', 'pos_block', 'position_encodings')
# Learnt tokens of plain transformers.
TOKEN_KEYS = ('cls_token', 'mask_token')


def translate_custom_keys(keys: dict[str, Any], backbone: nn.Module) -> dict[str, Any]:
    """Translates `custom_keys` for norms and position tables; drops others of the old backbone that match nothing."""
    names = [f'backbone.{name}' for name, _ in backbone.named_parameters()]
    translated = {}
    for key, value in keys.items():
        if key in POSITION_KEYS:
            if any('position_encoding' in name for name in names):
                translated['position_encoding'] = value
        elif key.startswith('backbone.') and 'norm' in key:
            translated |= dict.fromkeys(_norm_keys(backbone), value)
        elif not (key.startswith('backbone.') or key in TOKEN_KEYS) or any(key in name for name in names):
            translated[key] = value
    return translated


def _norm_keys(backbone: nn.Module) -> list[str]:
    """Returns a minimal list of keys that match all norms of the backbone, but no parameter of a head."""
    names = [f'backbone.{name}' for name, module in backbone.named_modules() if isinstance(module, nn.LayerNorm)]
    return list(dict.fromkeys(next((part for part in ('patch_embed.norm', 'attn.sr.norm') if name.endswith(part)),
                                   name.rstrip('0123456789')) for name in names))


def adapt_optimizer(wrapper: dict[str, Any], backbone: nn.Module) -> None:
    """Changes rules of `optim_wrapper` for the new backbone, in place; layer-wise decay stays for `CPVT` only."""
    paramwise = wrapper.get('paramwise_cfg') or {}
    if (wrapper.get('constructor') or '').rpartition('.')[2] in LAYER_DECAY:
        # Layer-wise decay also exempts norms and biases from weight decay; that part is kept.
        wrapper['paramwise_cfg'] = dict(custom_keys=dict(DECAY_RULES))
        del wrapper['constructor']
        if isinstance(backbone, CPVT):
            wrapper['constructor'] = CPVT.layer_decay_constructor
            rate = paramwise.get('layer_decay_rate', paramwise.get('decay_rate'))  # mmseg has both names
            wrapper['paramwise_cfg']['layer_decay_rate'] = rate
    elif paramwise.get('custom_keys'):
        paramwise['custom_keys'] = translate_custom_keys(paramwise['custom_keys'], backbone)


def set_optimizer(cfg: Config, backbone: PyramidCPVT | CPVT) -> None:
    """Sets AdamW with the project's rules for the config's scope, in place.

    An existing AdamW keeps its learning rate. For another optimizer, `eta_min` of schedulers is scaled with it.
    """
    if not cfg.get('optim_wrapper'):
        cfg.optim_wrapper = dict(type='OptimWrapper')
    wrapper = cfg.optim_wrapper
    old = wrapper.get('optimizer') or {}
    if old.get('type') != 'AdamW':
        new = wrapper['optimizer'] = dict(
            OF_SEGMENTORS if cfg.get('default_scope') == 'mmseg' else OF_DETECTORS[type(backbone)])
        for scheduler in dicts(cfg.get('param_scheduler')):
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
