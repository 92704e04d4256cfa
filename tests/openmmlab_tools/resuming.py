"""A small segmentor to interrupt, and the comparison of a resumed run with an uninterrupted one."""
import copy
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch.utils._pytree import tree_flatten

from openmmlab_tools.engine import load_config
from tests.helpers import toy_overrides

from .toy import SEGMENTOR


def segmentor(data: Path, folder: Path, options: dict[str, Any]) -> Config:
    """Random flips, dropout, images of 64 pixels, no validation, and a checkpoint after every second iteration."""
    small = {
        'train_cfg.max_iters': 4, 'train_cfg.val_interval': 100, 'train_dataloader.dataset.pipeline.2.scale': (64, 64),
        'val_dataloader.dataset.pipeline.1.scale': (64, 64), 'model.decode_head.dropout_ratio': 0.3,
        'default_hooks.checkpoint.interval': 2, 'default_hooks.checkpoint.max_keep_ckpts': -1, 'log_level': 'INFO',
        'randomness': dict(seed=3)}
    options = copy.deepcopy({**small, **options})  # mmengine takes `_delete_` out
    return load_config(SEGMENTOR, toy_overrides(data, **options), str(folder))


def assert_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Compares all that two checkpoints hold, to the bit, but for texts and times, and the losses and rates before."""
    assert list(first) == list(second) and len(first['state_dict']) > 50
    for part in {*first} - {'meta', 'message_hub'}:
        (values, kinds), (others, other_kinds) = map(tree_flatten, (first[part], second[part]))
        assert kinds == other_kinds and all(
            torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other
            for value, other in zip(values, others, strict=True)), part
    for name in ('train/loss', 'train/lr'):
        values, others = (run['message_hub']['log_scalars'][name]['log_history'] for run in (first, second))
        assert len(values) == first['meta']['iter'] and torch.equal(values, others), name
