"""Checks of a model and its classes, for mistakes that would show late, or not at all."""
import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.logging import print_log
from torch import nn

from openmmlab_tools.checkpoints.reading import read_weights
from openmmlab_tools.config_walk import walk
from openmmlab_tools.data.config_datasets import asks_for_masks
from openmmlab_tools.errors import UserError


def check_optim_wrapper(cfg: Config, instead: str) -> None:
    """Raises a UserError unless one optimizer trains the model, in mixed precision only on a GPU."""
    if 'optimizer' not in cfg.optim_wrapper:
        raise UserError('optim_wrapper of the config has no optimizer: set optim_wrapper.optimizer, the one for all '
                        'parts of the model.')
    if cfg.optim_wrapper.get('type') == 'AmpOptimWrapper' and get_device() == 'cpu':
        raise UserError(f'Mixed precision needs a GPU, but torch sees none: {instead}')


def check_pretrained(cfg: Config) -> None:
    """Raises a UserError for a local file in an `init_cfg` that is no checkpoint with good weights."""
    for _, part in walk(cfg.get('model')):
        if str(part.get('type')).endswith('Pretrained') and '://' not in (path := str(part.get('checkpoint'))):
            read_weights(path)


def check_metrics(model: nn.Module, cfg: Config, splits: Sequence[str]) -> None:
    """Raises a UserError if a metric of a split compares masks, but no part of the model has `mask` in its name."""
    for split in splits:
        if asks_for_masks(cfg, split) and not any('mask' in name for name, _ in model.named_modules()):
            raise UserError(f"{split}_evaluator has metric='segm', but the model has no head for masks: set "
                            f"{split}_evaluator.metric='bbox', or take a model with masks, such as Mask R-CNN.")


def trained_classes(meta: Mapping[str, Any]) -> list[str]:
    """Returns the classes in a checkpoint's `meta`, also of older libraries, in the order of labels; empty for none."""
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
