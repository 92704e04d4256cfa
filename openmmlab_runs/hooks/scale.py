"""A hook that writes to checkpoints at which scale training shows images, and tells if a test is far from it."""
from collections.abc import Mapping
from typing import Any

from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel
from mmengine.runner import Runner

from openmmlab_runs.data.datasets import unwrap_built
from openmmlab_runs.data.scales import KEY, Scales, mixes, scale_of, summarized
from openmmlab_runs.errors import show
from openmmlab_runs.registry import HOOKS

MOST = 500  # images of training


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
                [*map(int, one.ori_shape[:2]), None if self.mixes else scale_of(one, 1.)]
                for one in data_batch.get('data_samples') or () if 'ori_shape' in getattr(one, 'metainfo', ()))])

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        if seen := runner.message_hub.runtime_info.get(KEY):
            checkpoint['meta'][KEY] = summarized(seen)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        self.meta = checkpoint.get('meta') or {}

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if not isinstance(runner.model, BaseTTAModel):
            self.shown += [scale for one in outputs or () if (scale := scale_of(one))]

    def after_test_epoch(self, runner: Runner, metrics: Mapping[str, Any] | None = None) -> None:
        pipeline: Any = getattr(next(unwrap_built(runner.test_loop.dataloader.dataset)), 'pipeline', None)
        if self.shown and runner.cfg.get('default_scope') in ('mmdet', 'mmseg') and hasattr(pipeline, 'transforms'):
            trained = Scales([*pipeline.transforms], self.meta, runner.cfg).trained
            if trained and (note := trained.note(self.shown)):
                show(f'note: images of the test are {note}: set scale or scale_factor of Resize in test_dataloader.')
