"""Adapts what stands around the backbone: channels of necks and heads, and the optimizer."""
from collections.abc import Sequence
from typing import Any

from mmengine.config import Config
from torch import nn

from cpvt_mm.models import CPVT
from openmmlab_runs.config_walk import walk

from .probing import CannotSwap

# Optimizer constructors of mmdet and mmseg that know the names of parameters of a few backbones only.
LAYER_DECAY = ('LearningRateDecayOptimizerConstructor', 'LayerDecayOptimizerConstructor')
# Entries of a model that do not read feature maps.
NO_HEADS = ('backbone', 'neck', 'data_preprocessor', 'train_cfg', 'test_cfg', 'init_cfg')
# Heads of mmseg: without an in_index they take the last map.
SEGMENTATION_HEADS = ('decode_head', 'auxiliary_head')


def channels_key(neck: dict[str, Any]) -> str:
    """Returns the name of a neck's argument for its input channels."""
    return 'embed_dim' if 'embed_dim' in neck else 'in_channels'  # mmseg's Feature2Pyramid


def adapt_neck(neck: dict[str, Any], old: Sequence[int], new: Sequence[int]) -> None:
    """Changes the input channels of a neck from those of the old maps to those of the new ones, in place.

    Raises CannotSwap if it does not fit `old`. A neck without channels accepts any maps.
    """
    key = channels_key(neck)
    expected = neck.get(key)
    if expected is None:
        return
    if isinstance(expected, int) and expected == old[-1]:
        neck[key] = new[-1]
        return
    outputs = neck.get('out_channels')
    if isinstance(outputs, (list, tuple)) and list(outputs[:len(old)]) == list(old):
        # SSD's neck passes the maps through, and makes additional maps from the last one.
        neck['out_channels'] = type(outputs)([*new, *outputs[len(old):]])
    if not isinstance(expected, int) and list(expected) == list(old):
        neck[key] = type(expected)(new)
    elif not isinstance(expected, int) and list(expected) == list(reversed(old)):
        neck[key] = type(expected)(reversed(new))
    else:
        raise CannotSwap(f'its neck {neck["type"]} has {key} {expected}, but its backbone gives '
                         f'{", ".join(map(str, old))}: correct the config.')


def adapt_heads(model: dict[str, Any], old: Sequence[int], new: Sequence[int]) -> None:
    """Changes the input channels of all heads in a model from those of the maps that they got, in place.

    Raises CannotSwap if a head does not fit `old`, or its channels cannot be set in the config.
    """
    for name, entry in model.items():
        if name in NO_HEADS:
            continue
        for path, node in walk(entry, (name,)):
            where = '.'.join(map(str, path))
            if node.get('shared_head'):
                raise CannotSwap(f'its {where}.shared_head, {node["shared_head"]["type"]}, is the last stage of the '
                                 'old backbone and takes its channels only.')
            is_head_of_mmseg = name in SEGMENTATION_HEADS and len(path) - isinstance(entry, list) == 1
            _adapt_node(node, where, list(old), list(new), -1 if is_head_of_mmseg else None)


def _adapt_node(node: dict[str, Any], where: str, old: list[int], new: list[int], default_index: int | None) -> None:
    """Adapts a dict of a head at path `where`; without `in_index`, its map is that of `default_index`, if any."""
    expected = node.get('in_channels')
    index = node.get('in_index', default_index)
    if isinstance(expected, (list, tuple)) and list(expected) == old:
        node['in_channels'] = type(expected)(new)
    elif expected is not None and index is not None:
        indices = [index] if isinstance(index, int) else index
        try:
            was, becomes = ([channels[i] for i in indices] for channels in (old, new))
        except IndexError:
            was = becomes = []
        if was != ([expected] if isinstance(expected, int) else list(expected)):
            raise CannotSwap(f'its {where} has in_channels {expected} for in_index {index}, but gets '
                             f'{", ".join(map(str, old))}: correct the config.')
        node['in_channels'] = becomes[0] if isinstance(expected, int) else becomes
        if node.get('num_convs') == 0 and node.get('channels') == expected:  # a head that only classifies
            node['channels'] = becomes[0]
    elif len(old) == 1:
        # With a single map, every part with the same number of channels reads it.
        for key in ('in_channels', 'out_channels') if 'featmap_strides' in node else ('in_channels',):
            if node.get(key) == old[0]:
                node[key] = new[0]
    if node.get('c1_in_channels') == old[0]:  # DeepLabV3+ also takes the first map
        node['c1_in_channels'] = new[0]


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


def set_schedule(cfg: Config, backbone: nn.Module, optimizers: dict[str, dict[str, Any]]) -> None:
    """Sets AdamW with the project's rules for the config's scope, from `optimizers` ('mmdet' or 'mmseg'), in place.

    An existing AdamW keeps its learning rate. For another optimizer, `eta_min` of schedulers is scaled with it.
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
