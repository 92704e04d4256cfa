"""Runs in a process group of the caller, which stays, and in one of their own, which ends with them."""
import atexit
import os
import socket
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch.nn.parallel import DistributedDataParallel

from cpvt_mm import engine
from cpvt_mm.engine import load_config, train
from cpvt_mm.engine.process_group import process_group
from cpvt_mm.errors import UserError
from cpvt_mm.weights.reading import read_checkpoint
from tests.conftest import UPERNET, toy_overrides

LAUNCHERS = ('none', 'pytorch')


class Watch(Hook):
    """Notes what a process trains: whether the model averages gradients, its images, and its last weights."""

    def before_train(self, runner: Runner) -> None:
        self.is_wrapped, self.images = is_model_wrapper(runner.model), []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.images += [Path(sample.img_path).name for sample in data_batch['data_samples']]

    def after_train(self, runner: Runner) -> None:
        self.weights = runner.model.state_dict()


def failing() -> Hook:
    """A hook that fails in the first iteration."""
    hook = Hook()
    hook.after_train_iter = Mock(side_effect=UserError('a bad image'))
    return hook


def config(data: Path, work_dir: Path, launcher: str) -> Config:
    return load_config(UPERNET, toy_overrides(data, **{
        'train_cfg.max_iters': 2, 'train_cfg.val_interval': 100, 'train_dataloader.dataset.pipeline.2.scale': (64, 64),
        'val_dataloader.dataset.pipeline.1.scale': (64, 64), 'test_dataloader.dataset.pipeline.1.scale': (64, 64),
    }), str(work_dir), launcher)


def group_works() -> bool:
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item() == dist.get_world_size()


def join_group(**group: Any) -> None:
    """Makes a group without a launcher."""
    for name in ('RANK', 'LOCAL_RANK'):  # of a launcher
        os.environ.pop(name, None)
    dist.init_process_group('gloo', **group)


def in_a_group(rank: int, folder: Path, data: Path) -> None:
    """Trains, tests and fails in a group of two, and notes what happened with each launcher."""
    torch.set_num_threads(1)
    join_group(init_method=f'file://{folder}/store', rank=rank, world_size=2)
    notes = {}
    for launcher in LAUNCHERS:
        watch = Watch()
        train(config(data, folder / launcher, launcher), hooks=[watch])
        metrics = engine.test(config(data, folder / 'test', launcher), folder / launcher / 'iter_2.pth')
        notes[launcher] = dict(is_wrapped=watch.is_wrapped, images=watch.images, weights=watch.weights,
                               works=group_works(), metrics={name: float(value) for name, value in metrics.items()})
        with pytest.raises(UserError, match='a bad image'):
            train(config(data, folder / 'failed', launcher), hooks=[failing()])
        with pytest.raises(UserError, match='--show-dir paints in one process only'):
            engine.test(config(data, folder / 'test', launcher), folder / launcher / 'iter_2.pth', folder / 'painted')
        assert group_works()
    torch.save(notes, folder / f'{rank}.pth')
    dist.destroy_process_group()


@pytest.mark.slow
def test_the_callers_group_is_used_and_stays(toy_shapes: Path, tmp_path: Path) -> None:
    mp.spawn(in_a_group, (tmp_path, toy_shapes), nprocs=2)
    noted = [torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(2)]
    for launcher in LAUNCHERS:
        first, second = (notes[launcher] for notes in noted)
        assert first['works'] and second['works'] and first['is_wrapped'] and second['is_wrapped']
        # Each trains on its own half of the images, and all have the average of the gradients.
        assert len(first['images']) == len(second['images']) == 4 and not {*first['images']} & {*second['images']}
        for name, weight in read_checkpoint(tmp_path / launcher / 'iter_2.pth')['state_dict'].items():
            assert all(torch.equal(notes['weights'][f'module.{name}'], weight) for notes in (first, second))
        # The main process gathers the results of all.
        assert 0 <= first['metrics']['mIoU'] <= 100


@pytest.mark.slow
def test_a_group_of_one_as_in_a_notebook(toy_shapes: Path, tmp_path: Path) -> None:
    join_group(store=dist.HashStore(), rank=0, world_size=1)
    train(config(toy_shapes, tmp_path, 'none'))
    assert group_works() and (tmp_path / 'iter_2.pth').exists()
    with pytest.raises(UserError, match='a bad image'):
        train(config(toy_shapes, tmp_path, 'none'), hooks=[failing()])
    assert group_works()


def gloo_threads() -> int:
    """Counts the threads of gloo in this process; 0 if the system does not list threads."""
    return sum('gloo' in path.read_text() for path in Path('/proc/self/task').glob('*/comm'))


def in_their_own_group(rank: int, folder: Path, port: int, fails: bool) -> None:
    """Runs several times, as training and then testing do, and may fail alone in the last."""
    os.environ.update(RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    notes: list[object] = []
    # After the group has ended: functions that are registered first are called last.
    atexit.register(lambda: (folder / f'{rank}.txt').write_text(repr([*notes, dist.is_initialized(), gloo_threads()])))
    cfg = Config(dict(launcher='pytorch'))
    for _ in range(2):
        with process_group(cfg):
            notes.append(group_works())
            model = DistributedDataParallel(torch.nn.Linear(1, 1))
            model.module.cycle = [model]  # as runners and hooks refer to each other
            assert not list(Path('/proc/self/task').glob('*/comm')) or gloo_threads()
    del model
    if fails:
        try:
            with process_group(cfg):
                if rank:
                    raise UserError('an image that this process alone has')
                dist.all_reduce(torch.ones(1))
        except (UserError, RuntimeError) as error:
            notes += [type(error).__name__, dist.is_initialized()]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason='makes the group of a machine without a GPU')
@pytest.mark.parametrize('fails', [False, True])
def test_a_group_that_a_run_makes_ends_with_the_process_or_an_error(fails: bool, tmp_path: Path) -> None:
    with socket.create_server(('127.0.0.1', 0)) as listener:
        port = listener.getsockname()[1]  # which is free again
    context = mp.start_processes(in_their_own_group, (tmp_path, port, fails), 2, join=False, start_method='spawn')
    # The context's own join() would end a process that outlives the other, and so hide one that waits for ever.
    for process in context.processes:
        process.join(120)
    codes = [process.exitcode for process in context.processes]
    for process in context.processes:
        process.kill()
    assert codes == [0, 0]
    # A process that fails alone leaves the other with an error.
    assert [(tmp_path / f'{rank}.txt').read_text() for rank in range(2)] == [
        repr([True, True, *[error, False] * fails, False, 0]) for error in ('RuntimeError', 'UserError')]


def test_without_a_launcher_there_is_none() -> None:
    with process_group(Config(dict(launcher='none'))):
        assert not dist.is_initialized()
