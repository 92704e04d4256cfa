"""Replaces the backbone of a config by a backbone of this project."""
import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import print_log

from cpvt_mm.models import PyramidCPVT
from cpvt_mm.tokens.validation import check_names
from cpvt_mm.zoo.families import SAME, SAME_CLASSES, SWAPPED_IN, find_released
from cpvt_mm.zoo.members import IMAGENET
from openmmlab_tools.checkpoints.loading import bands_loader
from openmmlab_tools.config_walk import dicts, walk
from openmmlab_tools.errors import UserError

from .probing import (
    CannotBuild,
    CannotRun,
    CannotSwap,
    Maps,
    is_recognised,
    probe_backbone,
    probe_necks,
    same_backbone,
)
from .targets import TARGETS, Backbone, Target, adapt_optimizer, set_optimizer

Probe = Callable[[dict[str, Any], str | None], Maps]


def swap_backbone(cfg: Config, arch: str | dict[str, Any] | None = None, checkpoint: str | None = None,
                  optimizer: bool = False, backbone: str | None = None, probe: Probe = probe_backbone) -> Config:
    """Returns a config of mmdet or mmseg with `PyramidCPVT` or `CPVT` in it.

    A PVT, PVT v2, MiT or PCPVT may stay the same, see `same_backbone`: then everything around it stays, and weights of
    the whole model load as they are. Otherwise, it adapts the channels of necks and heads, the normalization of images,
    and the rules of the optimizer, and removes old weights (`pretrained`, `init_cfg`, `load_from`). For the choice of
    maps see `targets.choose_stages` and `targets.blocks_by_depth`.

    Args:
        cfg: The config, not changed. Its backbone and necks are built and run once, to find their channels.
        arch: The `arch` of the backbone. Defaults to None: 'small', or that of the released weights.
        checkpoint: Weights for the backbone, in any known format. Defaults to None: the released weights that
            `backbone` names, else random weights.
        optimizer: Whether to train with AdamW and this project's rules (no weight decay on position encodings and
            norms). An AdamW of the config keeps its learning rate. Defaults to False.
        backbone: 'same'; 'PyramidCPVT' for maps with a pyramid's strides, 'CPVT' for maps of stride 16, from one or
            several depths; or a name of `list_backbones(pretrained=True)`, with the arguments of these weights.
            Defaults to None: 'same' if possible, unless there is an `arch` or `checkpoint`; else 'PyramidCPVT'.
        probe: Finds the maps of the old backbone. Defaults to `probe_backbone`.

    Raises:
        CannotSwap: If the config cannot take the backbone.
        ValueError: If `backbone` or `arch` is unknown, or an argument does not go with `backbone`.
    """
    if backbone is None and arch is None and checkpoint is None and all(
            is_recognised(owner['backbone']) for _, owner in _owners(cfg)):
        try:
            return swap_backbone(cfg, optimizer=optimizer, backbone=SAME, probe=probe)
        except CannotSwap as error:
            print_log(f'the backbone becomes a PyramidCPVT, since {error}', 'current', logging.WARNING)
    backbone = backbone or 'PyramidCPVT'
    target = _target(backbone, arch, checkpoint)
    cfg = copy.deepcopy(cfg)
    owners = _owners(cfg)
    if backbone == SAME:
        new, *_ = [_keep_same(owner, cfg) for _, owner in owners]
    else:
        arch, checkpoint = target.arch if arch is None else arch, checkpoint or target.checkpoint
        new, *_ = [_swap_in(path, owner, cfg, target, arch, checkpoint, probe) for path, owner in owners]
    _remove_imports(cfg)
    adapt_optimizer(cfg.get('optim_wrapper') or {}, new)
    if optimizer:
        set_optimizer(cfg, new)
    return cfg


def _target(backbone: str, arch: object, checkpoint: str | None) -> Target:
    """Returns what is swapped in; raises a UserError if an argument does not go with it, which would be ignored."""
    check_names('a backbone that can be swapped in', [backbone], (SAME, *SWAPPED_IN), UserError)
    target = TARGETS['PyramidCPVT' if backbone == SAME else backbone]
    if arch is not None and (backbone == SAME or (target.checkpoint and arch != target.arch)):
        raise UserError(f'arch is {arch!r}, but {backbone!r} has its own: leave arch out.')
    if backbone == SAME and checkpoint is not None:
        raise UserError(f'checkpoint is {checkpoint!r}, but {backbone!r} keeps its weights: leave checkpoint out.')
    return target


def _owners(cfg: Config) -> list[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Returns the parts of the model that have a backbone, but no tracker's re-identification network, with paths."""
    found = [(path, node) for path, node in walk(cfg.get('model') or {}) if 'reid' not in path
             and isinstance(node.get('backbone'), dict) and node['backbone'].get('type')]
    if not found:
        raise CannotSwap('the config has no backbone with a type, in its model or in a part of it.')
    return found


def _keep_same(owner: dict[str, Any], cfg: Config) -> Backbone:
    """Puts the same backbone as a PyramidCPVT into a detector or segmentor, in place; returns it on the meta device."""
    config = owner['backbone']
    if not is_recognised(config):
        raise CannotSwap(f'its backbone {config["type"]} is not one of {", ".join(SAME_CLASSES)}, so it cannot stay '
                         'the same: name another backbone.')
    if owner.get('pretrained'):  # segmentors hand it to the backbone
        config = {**config, 'pretrained': owner['pretrained']}
        owner['pretrained'] = None
    owner['backbone'] = same_backbone(config, cfg.get('default_scope'))
    arguments = {key: value for key, value in owner['backbone'].items() if key not in ('type', 'init_cfg')}
    with torch.device('meta'):
        return PyramidCPVT(**arguments)


def _swap_in(path: tuple[str | int, ...], owner: dict[str, Any], cfg: Config, target: Target,
             arch: str | dict[str, Any], checkpoint: str | None, probe: Probe) -> Backbone:
    """Swaps the backbone of one detector or segmentor, in place, and returns the new one on the meta device."""
    scope = cfg.get('default_scope')
    old = probe(owner['backbone'], scope)
    arguments = target.arguments(owner['backbone'], old, scope, arch)
    with torch.device('meta'):
        new = target.cls(**arguments)

    necks = dicts(owner.get('neck'))
    if necks:
        target.adapt_neck(necks[0])
    _adapt(owner, necks, old, Maps(new.out_channels, new.strides), scope)

    owner['backbone'] = dict(type=f'cpvt_mm.{target.cls.__name__}', **arguments)
    if checkpoint:
        owner['backbone']['init_cfg'] = dict(type='Pretrained', checkpoint=checkpoint)
    holders = [cfg.model]
    for key in path:
        holders.append(holders[-1][key])
    for holder in [*holders, cfg]:
        holder.update({key: None for key in ('pretrained', 'init_cfg', 'load_from') if holder.get(key)})
    if 'in_channels' not in arguments and not bands_loader(cfg.get('train_dataloader')):  # which a pipeline normalizes
        released = find_released(checkpoint) if checkpoint else None
        _set_normalization(holders, cfg, *(released.normalization if released else IMAGENET))
    return new


def _adapt(owner: dict[str, Any], necks: Sequence[dict[str, Any]], old: Maps, new: Maps, scope: str | None) -> None:
    """Adapts the first neck, and the heads if their channels depend on the backbone."""
    if not necks or _channels_key(necks[0]) not in necks[0]:  # necks without channels, such as pooling, accept any maps
        adapt_heads(owner, old.channels, new.channels)
        return
    old_read = None if isinstance(necks[0].get('out_channels'), int) else probe_necks(necks, old, scope)
    adapt_neck(necks[0], old.channels, new.channels)
    if old_read:
        try:
            new_read = probe_necks(necks, new, scope)
        except CannotBuild as error:  # the necks could be built for the old channels
            raise CannotRun(str(error)) from error
        adapt_heads(owner, old_read.channels, new_read.channels)


def _remove_imports(cfg: Config) -> None:
    """Removes the import of mmpretrain if it was for the old backbone only."""
    imports = (cfg.get('custom_imports') or {}).get('imports', [])
    modules = [imports] if isinstance(imports, str) else imports
    if modules and all(module.startswith('mmpretrain') for module in modules) and 'mmpretrain.' not in str(cfg.model):
        cfg.custom_imports = None


def _set_normalization(holders: Sequence[dict[str, Any]], cfg: Config, mean: Sequence[float],
                       std: Sequence[float]) -> None:
    """Sets mean, standard deviation and channel order in the preprocessors of all models that contain the backbone."""
    has_own = any(holder.get('data_preprocessor') for holder in holders)
    for holder in holders if has_own else [cfg]:
        node = holder.get('data_preprocessor')
        while node:
            if 'data_preprocessor' not in node:  # else it wraps the one that normalizes, for several branches
                node.update(mean=list(mean), std=list(std))
                node.pop('rgb_to_bgr', None)
                node['to_rgb' if 'to_rgb' in node else 'bgr_to_rgb'] = True
            node = node.get('data_preprocessor')


# Entries of a model that do not read feature maps.
NO_HEADS = ('backbone', 'neck', 'data_preprocessor', 'train_cfg', 'test_cfg', 'init_cfg')
# Heads of mmseg: without an in_index they take the last map.
SEGMENTATION_HEADS = ('decode_head', 'auxiliary_head')


def _channels_key(neck: dict[str, Any]) -> str:
    """Returns the name of a neck's argument for its input channels."""
    return 'embed_dim' if 'embed_dim' in neck else 'in_channels'  # mmseg's Feature2Pyramid


def adapt_neck(neck: dict[str, Any], old: Sequence[int], new: Sequence[int]) -> None:
    """Changes the input channels of a neck from those of the old maps to those of the new ones, in place.

    Raises CannotSwap if it does not fit `old`. A neck without channels accepts any maps.
    """
    key = _channels_key(neck)
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
    for was, becomes in ((old, new), (old[::-1], new[::-1])):
        if not isinstance(expected, int) and list(expected) == list(was):
            neck[key] = type(expected)(becomes)
            return
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
