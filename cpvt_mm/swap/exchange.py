"""Gives a config the data of another one."""
import copy

from mmengine.config import Config

from openmmlab_runs.data.datasets import build_unread, classes_of, unwrap
from openmmlab_runs.data.fitting import set_classes
from openmmlab_runs.data.plans import task_of
from openmmlab_runs.data.splits import SPLITS
from openmmlab_runs.errors import UserError
from openmmlab_runs.registry import in_scope

# A sampler without an end needs a loop that counts iterations, so the schedule comes with the data.
SCHEDULE = ('param_scheduler', 'default_hooks', 'log_processor')
TAKEN = (*(f'{split}_{part}' for split in SPLITS for part in ('dataloader', 'evaluator', 'cfg')), *SCHEDULE)


def take_data(cfg: Config, source: Config) -> Config:
    """Returns a copy of a config with the data and the schedule of another one; its model and its optimizer stay.

    Heads get the number of classes of the data, and mmseg's data preprocessor the size of its images. Raises a
    UserError if the configs are for different tasks, or the training data does not state its classes.
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
