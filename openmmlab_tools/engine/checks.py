"""Checks of a model and its classes, for mistakes that would show late, or not at all."""
import logging
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmengine.device import get_device
from mmengine.dist import is_distributed
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner
from torch import nn

from openmmlab_tools.data.datasets import classes_of
from openmmlab_tools.data.uses import asks_for_masks
from openmmlab_tools.errors import UserError


def check_metrics(model: nn.Module, evaluators: Mapping[str, Any]) -> None:
    """Raises a UserError if a metric compares masks, but no part of the model has `mask` in its name.

    `evaluators` are configs by name, such as `val_evaluator`; None for no evaluator.
    """
    for name, evaluator in evaluators.items():
        if asks_for_masks(evaluator) and not any('mask' in part for part, _ in model.named_modules()):
            raise UserError(f"{name} has metric='segm', but the model has no head for masks: set {name}.metric='bbox', "
                            "or take a model with masks, such as Mask R-CNN.")


def check_norms(model: nn.Module) -> None:
    """Raises a UserError if norms share their statistics between processes without GPUs, which torch and mmcv refuse.
    """
    if is_distributed() and get_device() == 'cpu':
        for name, module in model.named_modules():
            if type(module).__name__ == 'SyncBatchNorm':  # of torch and of mmcv
                raise UserError(f'{name} of the model is a SyncBN or MMSyncBN, which several processes run on GPUs '
                                "only: set norm_cfg.type='BN' there, or use one process.")


class SameClassesHook(Hook):
    """Compares the classes in a checkpoint with the classes in the test data (see `check_classes`)."""

    def __init__(self, checkpoint: str | Path) -> None:
        self.checkpoint = checkpoint  # as the user wrote it

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        tested = classes_of(runner.test_loop.dataloader.dataset)
        check_classes(trained_classes(checkpoint['meta']), tested, self.checkpoint)


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
    index, was, now = next((index, *pair) for index, pair in enumerate(pairs) if pair[0] != pair[1])
    if sorted(trained) == sorted(tested):
        raise UserError(f'checkpoint {checkpoint} has the {len(tested)} classes of the test data in another order: '
                        f'class {index} is {was} in the checkpoint, but {now} in the test data. The metrics would mix '
                        'up the classes. Set metainfo.classes of test_dataloader.dataset to the order of the '
                        'checkpoint.')
    print_log(f'Checkpoint {checkpoint} was trained for {len(trained)} classes, but the test data has {len(tested)} '
              f'classes with other names: class {index} is {was} in the checkpoint, and {now} in the test data. '
              'Metrics treat them as the same class.', 'current', logging.WARNING)
