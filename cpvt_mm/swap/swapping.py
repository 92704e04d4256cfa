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
from cpvt_mm.zoo.families import find_released
from cpvt_mm.zoo.family import IMAGENET
from openmmlab_data.fitted_model import set_classes
from openmmlab_runs.checkpoints.loading import bands_loader
from openmmlab_runs.config_walk import walk
from openmmlab_runs.data.config_datasets import task_of
from openmmlab_runs.data.datasets import SPLITS, build_unread, classes_of, unwrap
from openmmlab_runs.errors import UserError
from openmmlab_runs.registry import in_scope

from .adapting import adapt_heads, adapt_neck, adapt_optimizer, channels_key, set_schedule
from .probing import CannotBuild, CannotRun, CannotSwap, Maps, probe_backbone, probe_necks
from .same import TYPES, is_recognised, same_backbone
from .targets import OPTIMIZERS, TARGETS, Backbone, Target

SAME = 'same'
# A sampler without an end needs a loop that counts iterations, so the schedule comes with the data.
SCHEDULE = ('param_scheduler', 'default_hooks', 'log_processor')
TAKEN = (*(f'{split}_{part}' for split in SPLITS for part in ('dataloader', 'evaluator', 'cfg')), *SCHEDULE)


def take_data(cfg: Config, source: Config) -> Config:
    """Returns a copy of a config with the data, numbers of classes, image size and schedule of another one.

    Raises a UserError if the configs are for different tasks, or the training data does not state its classes.
    """
    task, wanted = task_of(source), task_of(cfg)
    if task != wanted:
        raise UserError(f'the model is for {wanted}, but the data of {source.filename} is for {task}: name data for '
                        'the same task.')
    new = copy.deepcopy(cfg)
    for key in TAKEN:
        new.pop(key, None)
        if key in source:
            new[key] = copy.deepcopy(source[key])
    _, dataset = next(unwrap(source.train_dataloader.dataset, 'train_dataloader.dataset'))
    with in_scope(source.default_scope):
        classes = classes_of(build_unread(dataset))
    if not classes:
        raise UserError(f'train_dataloader.dataset of {source.filename} does not state its classes: add '
                        'metainfo=dict(classes=(...)).')
    set_classes(new.model, len(classes))
    preprocessor = source.model.get('data_preprocessor') or {}
    for key in ('size', 'size_divisor'):
        if task == 'semantic' and key in preprocessor:
            new.model.data_preprocessor[key] = preprocessor[key]
    return new


Probe = Callable[[dict[str, Any], str | None], Maps]


def swap_backbone(cfg: Config, arch: str | dict[str, Any] | None = None, checkpoint: str | None = None,
                  schedule: bool = False, backbone: str | None = None, probe: Probe = probe_backbone) -> Config:
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
        schedule: Whether to train with AdamW and this project's rules (no weight decay on position encodings and
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
            return swap_backbone(cfg, schedule=schedule, backbone=SAME, probe=probe)
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
    if schedule:
        set_schedule(cfg, new, OPTIMIZERS[target.cls])
    return cfg


def _target(backbone: str, arch: object, checkpoint: str | None) -> Target:
    """Returns what is swapped in; raises a ValueError if an argument does not go with it, which would be ignored."""
    check_names('a backbone that can be swapped in', [backbone], (SAME, *TARGETS))
    target = TARGETS['PyramidCPVT' if backbone == SAME else backbone]
    if arch is not None and (backbone == SAME or (target.checkpoint and arch != target.arch)):
        raise ValueError(f'arch is {arch!r}, but {backbone!r} has its own: leave arch out.')
    if backbone == SAME and checkpoint is not None:
        raise ValueError(f'checkpoint is {checkpoint!r}, but {backbone!r} keeps its weights: leave checkpoint out.')
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
        raise CannotSwap(f'its backbone {config["type"]} is not one of {", ".join(TYPES)}, so it cannot stay the same: '
                         'name another backbone.')
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

    necks = owner.get('neck') or []
    necks = necks if isinstance(necks, list) else [necks]
    if necks:
        target.adapt_neck(necks[0])
    _adapt(owner, necks, old, Maps(new.out_channels, new.strides), scope)

    owner['backbone'] = dict(type=f'cpvt_mm.{target.cls.__name__}', **arguments)
    if checkpoint:
        owner['backbone']['init_cfg'] = dict(type='Pretrained', checkpoint=checkpoint)
    holders = [cfg.model]
    for key in path:
        holders.append(holders[-1][key])
    _remove_weights([*holders, cfg])
    if 'in_channels' not in arguments and not bands_loader(cfg.get('train_dataloader')):  # which a pipeline normalizes
        released = find_released(checkpoint) if checkpoint else None
        _set_normalization(holders, cfg, *(released.normalization if released else IMAGENET))
    return new


def _adapt(owner: dict[str, Any], necks: Sequence[dict[str, Any]], old: Maps, new: Maps, scope: str | None) -> None:
    """Adapts the first neck, and the heads if their channels depend on the backbone."""
    if not necks or channels_key(necks[0]) not in necks[0]:  # necks without channels, such as pooling, accept any maps
        adapt_heads(owner, old.channels, new.channels)
    elif isinstance(necks[0].get('out_channels'), int):
        adapt_neck(necks[0], old.channels, new.channels)
    else:
        old_read = probe_necks(necks, old, scope)
        adapt_neck(necks[0], old.channels, new.channels)
        try:
            new_read = probe_necks(necks, new, scope)
        except CannotBuild as error:  # the necks could be built for the old channels
            raise CannotRun(str(error)) from error
        adapt_heads(owner, old_read.channels, new_read.channels)


def _remove_weights(holders: Sequence[dict[str, Any]]) -> None:
    """Removes pretrained weights from all that contain the old backbone."""
    for holder in holders:
        holder.update({key: None for key in ('pretrained', 'init_cfg', 'load_from') if holder.get(key)})


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
