"""Puts the data of a config into another config, with the numbers of classes, the image size and the schedule."""
import copy
import logging

from mmengine.config import Config
from mmengine.logging import print_log

from openmmlab_tools.data.datasets import SPLITS, build_unread, known_classes, unwrap
from openmmlab_tools.data.uses import task_of
from openmmlab_tools.errors import UserError
from openmmlab_tools.model_keys import demands
from openmmlab_tools.registry import in_scope

from .fitted_model import check_demands, fit_classes, forget_pipelines

# A sampler without an end needs a loop that counts iterations, so the schedule comes with the data.
SCHEDULE = ('param_scheduler', 'default_hooks', 'log_processor')
TAKEN = (*(f'{split}_{part}' for split in SPLITS for part in ('dataloader', 'evaluator', 'cfg')), *SCHEDULE)


def take_data(cfg: Config, source: Config) -> Config:
    """Returns a copy of a config with the data, numbers of classes, image size and schedule of another config.

    Raises a UserError if the configs are for different tasks, or the training data does not state its classes.
    """
    task, of_model = task_of(source), task_of(cfg)
    # Mask2Former and MaskFormer learn from objects with masks, and from panoptic maps.
    is_either = 'panoptic_fusion_head' in cfg.model and {task, of_model} <= {'instances', 'panoptic'}
    if task != of_model and not is_either:
        raise UserError(f'the model is for {of_model}, but the data of {source.filename} is for {task}: name data for '
                        'the same task.')
    check_demands(cfg.model, demands(source.model))
    new = copy.deepcopy(cfg)
    forget_pipelines(new)
    for key in TAKEN:
        new.pop(key, None)
        if key in source:
            new[key] = copy.deepcopy(source[key])
    _, dataset = next(unwrap(source.train_dataloader.dataset, 'train_dataloader.dataset'))
    with in_scope(source.default_scope):
        classes = known_classes(build_unread(dataset))
    if not classes:
        raise UserError(f'train_dataloader.dataset of {source.filename} does not state its classes: add '
                        'metainfo=dict(classes=(...)).')
    for line in fit_classes(new.model, classes, new.get('default_scope')):
        print_log(line, 'current', logging.WARNING)
    preprocessor = source.model.get('data_preprocessor') or {}
    if task == 'semantic':
        new.model.data_preprocessor |= {key: preprocessor[key] for key in ('size', 'size_divisor')
                                        if key in preprocessor}
    return new
