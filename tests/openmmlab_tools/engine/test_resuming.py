"""A resumed run ends as an uninterrupted one, to the bit: for each kind of loop, optimizer and group of processes."""
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import train
from openmmlab_tools.hooks.same_state import STATE
from tests.openmmlab_tools.resuming import assert_same, segmentor


class Case(NamedTuple):
    """The options of a run."""
    options: dict[str, Any]
    steps: tuple[int, ...] = (2,)  # the iterations after which it is interrupted
    whole: Mapping[str, Any] = MappingProxyType({})  # further options of the uninterrupted run
    processes: int = 1


@HOOKS.register_module()
class LookAtBatches(Hook):
    """Looks at a batch after each epoch, as mmpretrain's PreciseBNHook does, and checks the numbers of iterations."""

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        assert (runner.epoch, batch_idx) == divmod(runner.iter, 3)
        assert self.end_of_epoch(runner.train_dataloader, batch_idx) == (batch_idx == 2)

    def after_train_epoch(self, runner: Runner) -> None:
        next(iter(runner.train_dataloader))


# Two epochs of three iterations, with a learning rate by epoch, which is scaled, and checkpoints by iteration.
EPOCHS = {
    'train_cfg': dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=2, val_interval=100),
    'default_hooks.checkpoint.interval': 1, 'train_dataloader.dataset.indices': 6,
    'train_dataloader.sampler.type': 'DefaultSampler',
    'param_scheduler': [dict(type='MultiStepLR', by_epoch=True, milestones=[1])],
    'auto_scale_lr': dict(enable=True, base_batch_size=8), 'custom_hooks': [dict(type='LookAtBatches')]}
# Seven iterations, which update the weights in the 4th and in the 7th.
ACCUMULATING = {'train_cfg.max_iters': 7, 'optim_wrapper.accumulative_counts': 4}
# Updates after the 2nd, 4th and 6th iteration, with gradients that are clipped.
GROUPS = {
    'optim_wrapper.constructor': 'DefaultOptimWrapperConstructor',
    'train_cfg.max_iters': 6, 'default_hooks.checkpoint.interval': 3, 'optim_wrapper.accumulative_counts': 2,
    'model.backbone.frozen_stages': 2, 'optim_wrapper.paramwise_cfg.custom_keys.decode_head.lr_mult': 3.,
    'param_scheduler': [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=6, eta_min_ratio=0.01)]}
SGD = dict(_delete_=True, type='SGD', lr=0.01, momentum=0.9, weight_decay=0.)
CASES = {
    'a seed that is drawn': Case({'randomness': dict(seed=None)}),
    'an average of weights, and workers': Case({
        'custom_hooks': [dict(type='EMAHook')], 'train_dataloader.num_workers': 2}),
    'the best weights of a validation': Case({
        'train_cfg.val_interval': 1, 'default_hooks.checkpoint.save_best': 'mIoU'}),
    'SGD': Case({'optim_wrapper.optimizer': SGD}), 'epochs': Case(EPOCHS, (2, 3, 4)),
    'accumulated gradients': Case(ACCUMULATING, (4, 6)),
    'accumulated gradients of two processes': Case({**ACCUMULATING, 'train_dataloader.batch_size': 1}, processes=2),
    "mmengine's groups of parameters": Case(GROUPS, (3,), whole={
        'optim_wrapper.constructor': 'openmmlab_tools.UnmergedOptimWrapperConstructor'})}


def run(case: Case, folder: Path, data: Path) -> None:
    """Trains without an interruption, and from each checkpoint on."""
    train(segmentor(data, folder / 'whole', {**case.options, **case.whole}))
    for step in case.steps:
        np.random.seed(step)  # a run with a new seed would draw another one
        train(segmentor(data, folder / str(step), case.options), resume=str(folder / f'whole/iter_{step}.pth'))


def in_process(rank: int, name: str, folder: Path, data: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank,
                            world_size=CASES[name].processes)
    run(CASES[name], folder, data)
    dist.destroy_process_group()


def last_of(folder: Path) -> dict[str, Any]:
    return read_checkpoint((folder / 'last_checkpoint').read_text())


@pytest.mark.parametrize('name', [*CASES][:1] + [pytest.param(name, marks=pytest.mark.slow) for name in [*CASES][1:]])
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, toy_shapes: Path, tmp_path: Path) -> None:
    case = CASES[name]
    if case.processes > 1:
        mp.spawn(in_process, (name, tmp_path, toy_shapes), nprocs=case.processes)
    else:
        run(case, tmp_path, toy_shapes)
    whole = last_of(tmp_path / 'whole')
    for step in case.steps:
        before, resumed = read_checkpoint(tmp_path / f'whole/iter_{step}.pth'), last_of(tmp_path / str(step))
        assert_same(whole, resumed)
        assert before['meta']['seed'] == whole['meta']['seed'] == resumed['meta']['seed']
        assert any(not torch.equal(value, whole['state_dict'][key]) for key, value in before['state_dict'].items())
        log = ''.join(file.read_text() for file in (tmp_path / str(step)).glob('*/*.log'))
        assert not re.search('results may differ|are lost', log)


@pytest.mark.slow
def test_a_checkpoint_of_plain_mmengine_keeps_its_groups(toy_shapes: Path, tmp_path: Path) -> None:
    case = CASES["mmengine's groups of parameters"]
    train(segmentor(toy_shapes, tmp_path / 'whole', {**case.options, **case.whole}))
    old = read_checkpoint(tmp_path / 'whole/iter_3.pth')
    del old['meta'][STATE]
    torch.save(old, tmp_path / 'old.pth')
    train(segmentor(toy_shapes, tmp_path / 'resumed', case.options), resume=str(tmp_path / 'old.pth'))
    whole, resumed = (last_of(tmp_path / name) for name in ('whole', 'resumed'))
    torch.testing.assert_close(whole['state_dict'], resumed['state_dict'], rtol=0, atol=0)
