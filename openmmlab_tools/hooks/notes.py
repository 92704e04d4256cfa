"""Hooks that write notes to checkpoints: the log of a run, and at which scale training shows images."""
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseTTAModel
from mmengine.runner import Runner

from openmmlab_tools.data.datasets import unwrap_built
from openmmlab_tools.data.scales import KEY, Scales, mixes, scale_of, summarized
from openmmlab_tools.errors import show
from openmmlab_tools.redaction import REDACTED, redact_text
from openmmlab_tools.registry import HOOKS

HISTORY = ('log_history', 'count_history', 'max_length')  # keys of a logged scalar in plain types
MOST = 500  # images of training


@HOOKS.register_module()
class PortableLogHook(Hook):
    """Writes the log of a run to checkpoints in plain types, so that `torch.load(..., weights_only=True)` reads it.

    Each `HistoryBuffer` of mmengine becomes a dict with the tensors `log_history` and `count_history`, and numbers of
    numpy become numbers of Python. A resumed run restores its `HistoryBuffer` objects with bitwise equal values.
    """

    priority = 'LOWEST'  # after hooks that add something to the checkpoint

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        for key in ('meta', 'message_hub', 'param_schedulers'):
            if key in checkpoint:
                checkpoint[key] = to_builtin_types(checkpoint[key])
        checkpoint['meta'][REDACTED] = True  # as mmengine writes the config of `load_config`

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        scalars = checkpoint.get('message_hub', {}).get('log_scalars', {})
        scalars.update({name: _to_buffer(value) for name, value in scalars.items() if isinstance(value, dict)})


def to_builtin_types(value: Any) -> Any:
    """Converts logged scalars, numpy's numbers and arrays in nested containers to tensors, numbers and lists."""
    if isinstance(value, HistoryBuffer):
        history, counts = (torch.from_numpy(np.array(array)) for array in value.data)
        return dict(zip(HISTORY, (history, counts, value.max_length), strict=True))
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {to_builtin_types(key): to_builtin_types(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_builtin_types(item) for item in value)
    return value


def _to_buffer(value: Mapping[str, Any]) -> HistoryBuffer:
    history, counts, max_length = (value[key] for key in HISTORY)
    return HistoryBuffer(*(array.cpu().numpy() for array in (history, counts)), max_length)


@HOOKS.register_module()
class ScaleHook(Hook):
    """Writes to `meta` of checkpoints the middle size of images of training, and at which scales they were shown.

    After a test, a note tells if images were shown at scales far from these.
    """

    def __init__(self) -> None:
        self.meta: Mapping[str, Any] = {}
        self.shown: list[float] = []

    def before_train(self, runner: Runner) -> None:
        self.mixes = mixes(runner.cfg.train_dataloader)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        seen = runner.message_hub.runtime_info.get(KEY, [])
        if len(seen) < MOST and runner.cfg.get('default_scope') in ('mmdet', 'mmseg') and isinstance(data_batch, dict):
            runner.message_hub.update_info(KEY, [*seen, *(
                [*map(int, sample.ori_shape[:2]), None if self.mixes else scale_of(sample, 1.)]
                for sample in data_batch.get('data_samples') or () if 'ori_shape' in getattr(sample, 'metainfo', ()))])

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        if seen := runner.message_hub.runtime_info.get(KEY):
            checkpoint['meta'][KEY] = summarized(seen)
        elif KEY in self.meta:  # before the first iteration, the weights are still those of the start checkpoint
            checkpoint['meta'][KEY] = self.meta[KEY]

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        self.meta = checkpoint.get('meta') or {}

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if not isinstance(runner.model, BaseTTAModel):
            self.shown += [scale for sample in outputs or () if (scale := scale_of(sample))]

    def after_test_epoch(self, runner: Runner, metrics: Mapping[str, Any] | None = None) -> None:
        pipeline: Any = getattr(next(unwrap_built(runner.test_loop.dataloader.dataset)), 'pipeline', None)
        if self.shown and runner.cfg.get('default_scope') in ('mmdet', 'mmseg') and hasattr(pipeline, 'transforms'):
            trained = Scales([*pipeline.transforms], self.meta, runner.cfg).trained
            if trained and (note := trained.note(self.shown)):
                show(f'note: images of the test are {note}: set scale or scale_factor of Resize in test_dataloader.')
