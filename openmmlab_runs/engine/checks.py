"""Checks of a config, its model and its classes, for mistakes that would show late or far from their cause."""
import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from torch import nn

from openmmlab_runs.checkpoints.loading import OF_BANDS, bands_loader
from openmmlab_runs.checkpoints.reading import read_weights
from openmmlab_runs.config_walk import walk
from openmmlab_runs.data.config_datasets import asks_for_masks
from openmmlab_runs.data.datasets import SPLITS
from openmmlab_runs.errors import UserError

# Top-level keys of mmdet 2 and mmseg 0, with the keys that replaced them.
OLD_KEYS = dict(data='train_dataloader, val_dataloader and test_dataloader', total_epochs='train_cfg.max_epochs',
                lr_config='param_scheduler', checkpoint_config='default_hooks.checkpoint', evaluation='val_evaluator',
                optimizer_config='optim_wrapper')
# Optimizer constructors of mmdet and mmseg that know the names of parameters of a few backbones only.
LAYER_DECAY = ('LearningRateDecayOptimizerConstructor', 'LayerDecayOptimizerConstructor')
# What must be a dict, if it is set.
DICTS = ('model', 'train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'default_hooks', 'env_cfg', *(
    f'{split}_dataloader' for split in SPLITS))


def check_config(cfg: Config) -> None:
    """Raises a UserError for keys of a config that mmengine would ignore, or refuse in words of its own."""
    # Some of mmpretrain's own configs still have old keys beside the new ones.
    is_mixed = 'train_dataloader' in cfg and cfg.get('default_scope') == 'mmpretrain'
    for key, new in OLD_KEYS.items():
        if key in cfg and not is_mixed:
            raise UserError(f'config {cfg.filename} has {key}, as configs of mmdet 2 and mmseg 0, which mmdet 3 and '
                            f'mmseg 1 ignore: write {new} instead, and see their migration guides.')
    for key in DICTS:
        if cfg.get(key) is not None and not isinstance(cfg[key], dict):
            raise UserError(f'{key} of config {cfg.filename} is {cfg[key]!r}, but must be a dict: correct it.')
    for split in SPLITS:
        loader = cfg.get(f'{split}_dataloader') or {'dataset': {}}
        if not isinstance(loader.get('dataset'), dict):
            raise UserError(f'{split}_dataloader.dataset of config {cfg.filename} is not a dict: name the data there.')
        if loader.get('persistent_workers') and not loader.get('num_workers', 0):
            raise UserError(f'{split}_dataloader.persistent_workers is True, but num_workers is 0: set '
                            f'{split}_dataloader.persistent_workers=False.')
        if loader.get('batch_sampler') and loader.get('drop_last'):
            raise UserError(f'{split}_dataloader has both drop_last=True and a batch_sampler, which makes the batches: '
                            f'set {split}_dataloader.batch_sampler.drop_last instead.')
    train_cfg = cfg.get('train_cfg') or {}
    by_iter = 'IterBased' in str(train_cfg.get('type')) or train_cfg.get('by_epoch') is False
    unit, other = ('max_iters', 'max_epochs') if by_iter else ('max_epochs', 'max_iters')
    if other in train_cfg and ('type' in train_cfg or unit in train_cfg):
        raise UserError(f'train_cfg.{other} is {train_cfg[other]}, but the schedule counts '
                        f'{"iterations" if by_iter else "epochs"}: set train_cfg.{unit}.')
    _check_channels(cfg)
    test_cfg = (cfg.get('model') or {}).get('test_cfg') or {}
    windows = [test_cfg.get(key) for key in ('stride', 'crop_size')]  # numbers in mmseg's U-Net, which others replace
    if all(isinstance(one, list | tuple) for one in windows) and any(
            step > side for step, side in zip(*windows, strict=False)):
        raise UserError(f'model.test_cfg.stride is {tuple(test_cfg["stride"])}, but windows of crop_size '
                        f'{tuple(test_cfg["crop_size"])} leave pixels between them out: set a smaller stride.')


def _check_channels(cfg: Config) -> None:
    """Compares the channels of the backbone, if it states them, with what loads and normalizes its images."""
    model = cfg.get('model') or {}
    preprocessor = model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    channels = (model.get('backbone') or {}).get('in_channels')
    if not isinstance(channels, int):
        return
    is_mmdet, mean = cfg.get('default_scope') == 'mmdet', preprocessor.get('mean')
    count = len(mean) if isinstance(mean, list | tuple) else 1
    fault = ''
    if count not in (1, channels):
        fault = f'mean has {count} values, but backbone.in_channels is {channels}'
    elif is_mmdet and count not in (1, 3):
        fault = f'mean has {count} values, but mmdet takes one or three'
    elif is_mmdet and channels != 3 and preprocessor.get('bgr_to_rgb'):
        fault = f'bgr_to_rgb is True, which is for three channels, but backbone.in_channels is {channels}'
    if fault:
        raise UserError(f'data_preprocessor.{fault}: {OF_BANDS}.')
    for split in SPLITS:
        loader = bands_loader(cfg.get(f'{split}_dataloader'))
        if loader and preprocessor.get('bgr_to_rgb'):
            raise UserError('data_preprocessor.bgr_to_rgb is True, but LoadBandsFromFile loads no BGR: set it False.')
        if loader and loader.get('channels') != channels:
            raise UserError(f'LoadBandsFromFile of {split}_dataloader has channels={loader.get("channels")}, but '
                            f'backbone.in_channels is {channels}: make them equal.')


def check_pretrained(cfg: Config) -> None:
    """Raises a UserError for a local file in an `init_cfg` that is no checkpoint with good weights."""
    for _, part in walk(cfg.get('model')):
        if str(part.get('type')).endswith('Pretrained') and '://' not in (path := str(part.get('checkpoint'))):
            read_weights(path)


def check_layer_decay(model: nn.Module, cfg: Config) -> None:
    """Raises a UserError if layer decay of mmdet or mmseg is for a backbone that names a constructor of its own."""
    constructor = str((cfg.get('optim_wrapper') or {}).get('constructor')).rpartition('.')[2]
    own = [(type(part).__name__, part.layer_decay_constructor) for part in model.modules()
           if hasattr(part, 'layer_decay_constructor')]
    if constructor in LAYER_DECAY and own:
        raise UserError(f'optim_wrapper.constructor is {constructor}, which knows no layers of {own[0][0]}: set '
                        f'optim_wrapper.constructor={own[0][1]!r} and optim_wrapper.paramwise_cfg=dict('
                        'layer_decay_rate=0.7), or another rate.')


def check_metrics(model: nn.Module, cfg: Config, splits: Sequence[str]) -> None:
    """Raises a UserError if a metric of a split compares masks, but no part of the model has `mask` in its name."""
    for split in splits:
        if asks_for_masks(cfg, split) and not any('mask' in name for name, _ in model.named_modules()):
            raise UserError(f"{split}_evaluator has metric='segm', but the model has no head for masks: set "
                            f"{split}_evaluator.metric='bbox', or take a model with masks, such as Mask R-CNN.")


def trained_classes(checkpoint: Mapping[str, Any]) -> list[str]:
    """Returns the classes in a checkpoint's `meta`, also of older libraries, in the order of labels; empty for none."""
    meta = checkpoint.get('meta') or {}
    for place in (meta.get('dataset_meta') or {}, meta):
        if classes := place.get('classes') or place.get('CLASSES'):
            return [classes] if isinstance(classes, str) else list(classes)
    return []


def check_classes(trained: Sequence[str], tested: Sequence[str], checkpoint: str | Path) -> None:
    """Warns if the classes of checkpoint and test data, if known, differ; the same in another order are a UserError."""
    if not trained or not tested or [*trained] == [*tested]:
        return
    pairs = zip_longest(map(repr, trained), map(repr, tested), fillvalue='missing')
    index, theirs, ours = next((index, *pair) for index, pair in enumerate(pairs) if pair[0] != pair[1])
    if sorted(trained) == sorted(tested):
        raise UserError(f'checkpoint {checkpoint} has the {len(tested)} classes of the test data in another order '
                        f'(class {index} is {theirs} there, and {ours} here), so metrics would be of wrong classes: '
                        'put metainfo.classes of test_dataloader.dataset in the order of the checkpoint.')
    print_log(f'Checkpoint {checkpoint} was trained for {len(trained)} classes, but the test data has {len(tested)} of '
              f'other names: class {index} is {theirs} there, and {ours} here. Metrics take the one for the other.',
              'current', logging.WARNING)
