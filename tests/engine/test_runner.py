"""The runner: what it checks of data, what it adds to mmengine's, and that mmengine calls what it overrides."""
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset, Compose
from mmengine.hooks import CheckpointHook, Hook
from mmengine.registry import DATA_SAMPLERS, HOOKS, RUNNERS, init_default_scope
from mmengine.runner import Runner as MMEngineRunner
from mmseg.datasets import BaseSegDataset
from PIL import Image
from torch import nn
from torch.utils.data import BatchSampler

from cpvt_mm.data.checking.pipeline import CheckedPipeline
from cpvt_mm.engine import Runner, load_config, train
from cpvt_mm.engine.run import build_runner
from cpvt_mm.engine.seeding import SeededBatches
from cpvt_mm.errors import UserError
from cpvt_mm.hooks import DurableCheckpointHook, NonFiniteLossHook
from tests.conftest import UPERNET, toy_overrides


class Videos(BaseDataset):
    """Samples are dicts of lists, as mmdet's of videos."""

    def load_data_list(self) -> list[dict[str, Any]]:
        return [dict(img_path=['a.jpg', 'b.jpg'], instances=[[], []], height=[2, 2], width=[3, 3])] * 2


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., Runner]:
    """A runner of the parts that its methods read."""
    init_default_scope('mmseg')

    def run(model: nn.Module | None = None, **cfg: Any) -> Runner:
        runner = object.__new__(Runner)
        runner.model, runner.cfg = model or nn.Identity(), Config(cfg)
        return runner

    return run


def loader(dataset: dict[str, Any]) -> dict[str, Any]:
    return dict(dataset=dataset, batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
                collate_fn=dict(type='pseudo_collate'))


def labelled(folder: Path, value: int, **more: Any) -> dict[str, Any]:
    """A loader of one image whose label map has a value."""
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(folder / 'a.jpg')
    Image.fromarray(np.full((20, 30), value, np.uint8)).save(folder / 'a.png')
    return loader(dict(type=BaseSegDataset, data_root=str(folder), metainfo=dict(classes=('a', 'b')), pipeline=[
        dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')], **more))


def test_videos_pass(build: Callable) -> None:
    batches = list(build().build_dataloader(loader(dict(type=Videos, pipeline=[
        lambda data: dict(data, ori_shape=[(2, 3), (2, 3)])]))))
    assert len(batches) == 2 and 'ori_shape' in batches[0]


def test_only_mmengines_own_pipeline_is_replaced(build: Callable) -> None:

    class Own(Compose):
        pass

    class Other(Videos):

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.pipeline = Own([])

    assert type(build().build_dataloader(loader(dict(type=Videos))).dataset.pipeline) is CheckedPipeline
    assert type(build().build_dataloader(loader(dict(type=Other))).dataset.pipeline) is Own


def test_labels_that_are_no_class_are_named(build: Callable, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'a\.png has class 254, but there are 2 classes'):
        list(build().build_dataloader(labelled(tmp_path, 254)))


class Head(nn.Module):

    def __init__(self, **settings: int) -> None:
        super().__init__()
        vars(self).update(settings)


@pytest.mark.parametrize('value, cfg, head, more', [
    (255, {}, {}, dict(ignore_index=254)),
    (254, {}, {}, dict(ignore_index=254)),
    (254, {}, dict(ignore_index=254), {}),
    (254, dict(val_evaluator=[dict(type='IoUMetric', ignore_index=254)]), {}, {}),
    (4, {}, dict(num_classes=5), {}),
    (254, {}, {}, dict(metainfo={})),  # classes are not known
])
def test_labels_that_cannot_be_told_wrong_pass(build: Callable, tmp_path: Path, value: int, cfg: dict, head: dict,
                                               more: dict) -> None:
    data = labelled(tmp_path, value)
    data['dataset'].update(more)
    batch, = build(nn.ModuleDict(dict(decode_head=Head(**head))), **cfg).build_dataloader(data)
    assert torch.as_tensor(batch['gt_seg_map'][0]).eq(value).all()


@pytest.fixture
def cfg(toy_shapes: Path, tmp_path: Path) -> Config:
    return load_config(UPERNET, toy_overrides(toy_shapes), str(tmp_path))


@HOOKS.register_module()
class OwnCheckpointHook(CheckpointHook):
    pass


@DATA_SAMPLERS.register_module()
class OwnBatchSampler(BatchSampler):

    def __init__(self, sampler: object, batch_size: int, drop_last: bool = False, flag: int = 0) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.flag = flag


@RUNNERS.register_module()
class OwnRunner(MMEngineRunner):
    pass


def test_mmengines_checkpoint_hook_becomes_a_durable_one_and_those_derived_from_it_stay(cfg: Config) -> None:
    cfg.default_hooks.checkpoint.update(type='mmengine.CheckpointHook', interval=7)
    cfg.custom_hooks = [dict(type='CheckpointHook', interval=8), dict(type='OwnCheckpointHook', interval=9)]
    runner = build_runner(cfg)
    runner.register_hook(dict(type=CheckpointHook, interval=10))
    hooks = [(hook.interval, type(hook)) for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    assert sorted(hooks) == [(7, DurableCheckpointHook), (8, DurableCheckpointHook), (9, OwnCheckpointHook),
                             (10, DurableCheckpointHook)]


def test_every_override_is_of_a_public_method_with_its_signature() -> None:
    """The contract with both stacks: the methods are there, and take what they took."""
    methods = {name: method for name, method in vars(Runner).items()
               if inspect.isfunction(method) and name != '__annotate_func__'}  # Python 3.14 adds that one
    assert {name for name in methods if not name.startswith('_')} == {
        'build_logger', 'build_model', 'wrap_model', 'dump_config', 'train', 'test', 'build_dataloader',
        'build_optim_wrapper', 'build_train_loop', 'build_val_loop', 'build_test_loop', 'register_hooks',
        'register_default_hooks', 'register_hook', 'call_hook'}
    for name, method in methods.items():
        if name.startswith('_'):  # our own
            assert not hasattr(MMEngineRunner, name)
            continue
        theirs = list(inspect.signature(getattr(MMEngineRunner, name)).parameters)
        ours = list(inspect.signature(method).parameters)
        assert ours == (theirs if theirs[0] == 'self' else ['self', *theirs]), name


@pytest.mark.parametrize('loop, endless', [
    (dict(type='IterBasedTrainLoop', max_iters=2), True), (dict(by_epoch=False, max_iters=2), True),
    (dict(type='EpochBasedTrainLoop', max_epochs=1), False), (dict(by_epoch=True, max_epochs=1), False)])
def test_the_training_loop_and_no_other_gets_seeded_batches(loop: dict, endless: bool, cfg: Config) -> None:
    """The contract with both stacks: loops build their data from the config of the train loader."""
    cfg.train_cfg, cfg.val_cfg = loop, dict(type='ValLoop')
    cfg.train_dataloader.update(sampler=dict(type='DefaultSampler', shuffle=True), batch_size=3, drop_last=True)
    runner = build_runner(cfg)
    batches = runner.train_dataloader.batch_sampler
    assert isinstance(batches, SeededBatches) and batches.endless == endless and batches.seed == runner.seed
    assert (batches.batch_size, batches.drop_last) == (3, True)
    assert type(runner.val_dataloader.batch_sampler) is BatchSampler


def test_a_batch_sampler_of_the_config_is_seeded(cfg: Config) -> None:
    cfg.train_dataloader.batch_sampler = dict(type='OwnBatchSampler', flag=7)
    batches = build_runner(cfg).train_dataloader.batch_sampler
    assert isinstance(batches, SeededBatches) and type(batches.batches) is OwnBatchSampler and batches.flag == 7


def test_a_config_with_a_runner_of_its_own_gets_it(cfg: Config) -> None:
    cfg.runner_type = 'OwnRunner'
    assert type(build_runner(cfg)) is OwnRunner


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs a file that is always full')
def test_a_log_on_a_full_disk_ends_training(cfg: Config) -> None:

    class FillsUp(Hook):

        def before_train(self, runner: Runner) -> None:
            file, = (handler for handler in runner.logger.handlers if isinstance(handler, logging.FileHandler))
            file.close()  # opens the file of that name when it next writes
            file.baseFilename = '/dev/full'
            try:
                runner.logger.error('the last line')
            finally:
                runner.logger.removeHandler(file)  # later tests use this logger, too

    cfg.train_cfg.update(max_iters=1, val_interval=100)
    with pytest.raises(UserError, match=r'/dev/full cannot be written \(No space left on device\): free space for it'):
        train(cfg, hooks=[FillsUp()])


@pytest.mark.parametrize('hook, expected', [({}, 1), (dict(non_finite_loss=None), 0),
                                            (dict(non_finite_loss=dict(type='cpvt_mm.NonFiniteLossHook')), 1)])
def test_every_config_is_guarded_against_losses_that_are_not_finite(cfg: Config, hook: dict, expected: int) -> None:
    del cfg.default_hooks.non_finite_loss
    cfg.default_hooks.update(hook)
    runner = Runner.from_cfg(cfg)
    assert sum(isinstance(hook, NonFiniteLossHook) for hook in runner.hooks) == expected
