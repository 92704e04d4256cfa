"""Two processes train as one does, without find_unused_parameters; a caller's process group stays, a run's own ends."""
import atexit
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.registry import MODELS
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from openmmlab_runs import engine
from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.engine import load_config, train
from openmmlab_runs.engine.process_group import process_group
from openmmlab_runs.errors import UserError
from tests.conftest import UPERNET, refusal, toy_overrides
from tests.processes import free_port

LAUNCHERS = ('none', 'pytorch')


class Watch(Hook):
    """Notes what a process trains: whether the model averages gradients, its images, and its last weights."""

    def before_train(self, runner: Runner) -> None:
        self.is_wrapped, self.images = is_model_wrapper(runner.model), []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.images += [Path(sample.img_path).name for sample in data_batch['data_samples']]

    def after_train(self, runner: Runner) -> None:
        self.weights = runner.model.state_dict()


FAILING = Hook()
FAILING.after_train_iter = Mock(side_effect=UserError('a bad image'))


def config(data: Path, work_dir: Path, launcher: str) -> Config:
    return load_config(UPERNET, toy_overrides(data, **{
        'train_cfg.max_iters': 2, 'train_cfg.val_interval': 100, 'train_dataloader.dataset.pipeline.2.scale': (64, 64),
        'val_dataloader.dataset.pipeline.1.scale': (64, 64), 'test_dataloader.dataset.pipeline.1.scale': (64, 64),
    }), str(work_dir), launcher)


def group_works() -> bool:
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item() == dist.get_world_size()


def in_a_group(rank: int, folder: Path, data: Path) -> None:
    """Trains, tests and fails in a group of two, and notes what happened with each launcher."""
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    notes = {}
    for launcher in LAUNCHERS:
        watch = Watch()
        train(config(data, folder / launcher, launcher), hooks=[watch])
        metrics = engine.test(config(data, folder / 'test', launcher), folder / launcher / 'iter_2.pth')
        notes[launcher] = dict(is_wrapped=watch.is_wrapped, images=watch.images, weights=watch.weights,
                               works=group_works(), metric=float(metrics['mIoU']))
        assert refusal(train, config(data, folder / 'failed', launcher), hooks=[FAILING]) == 'a bad image'
        assert '--show-dir paints in one process only' in refusal(
            engine.test, config(data, folder / 'test', launcher), folder / launcher / 'iter_2.pth', folder / 'painted')
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
        assert 0 <= first['metric'] <= 100


@pytest.mark.slow
def test_a_group_of_one_as_in_a_notebook(toy_shapes: Path, tmp_path: Path) -> None:
    dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)
    train(config(toy_shapes, tmp_path, 'none'))
    assert group_works() and (tmp_path / 'iter_2.pth').exists()
    assert refusal(train, config(toy_shapes, tmp_path, 'none'), hooks=[FAILING]) == 'a bad image'
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
    context = mp.start_processes(in_their_own_group, (tmp_path, free_port(), fails), 2, join=False,
                                 start_method='spawn')
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


# Two processes, each with two of four images, have the gradients of one with all where losses are means over equally
# many items of each image. The resampling of tables is of float32, a share of about 1e-7.
HEIGHT, WIDTH = 64, 96
SMALL = dict(
    PyramidCPVT=dict(embed_dims=(8, 8, 16, 16), depths=(1, 2, 1, 1), num_heads=(1, 1, 2, 2), mlp_ratios=(2, 2, 2, 2),
                     sr_ratios=(4, 2, 2, 1)), CPVT=dict(embed_dims=16, depth=3, num_heads=2, mlp_ratio=2))
PEG, BOTH = dict(type='PEG'), [dict(type='PEG'), dict(type='LearnablePE')]
# The difference allowed, as a share of the gradient: far above these two, far below what any process contributes.
SHARE = 1e-5
PYRAMID, PLAIN = dict(type='PyramidCPVT', out_norm=True), dict(type='CPVT')
# The PEG after the last block changes no class token. Its gradient is there, and zero.
USELESS = dict(PLAIN, out_type='cls_token', position_encoding=dict(type='PEG', positions=(0, 2)))
# One of each behaviour: parts that are frozen, stages after the last output, which have no gradient, and with_cp.
CASES: list[dict[str, Any]] = [
    dict(PYRAMID, position_encoding=PEG),
    dict(PYRAMID, with_cp='selective', position_encoding=BOTH, out_indices=(0, 2)),
    dict(PYRAMID, with_cp=True, position_encoding=BOTH, out_indices=(1, 3), frozen_stages=2),
    dict(PYRAMID, with_cp='selective', position_encoding=PEG, out_indices=(1,), frozen_stages=1),
    dict(PYRAMID, with_cp=True, position_encoding=BOTH, out_indices=(3,), frozen_stages=4),
    dict(PLAIN, position_encoding=BOTH, out_indices=(0, 1, 2)),
    dict(PLAIN, with_cp='selective', position_encoding=PEG, out_indices=(1,)),
    dict(PLAIN, with_cp=True, position_encoding=BOTH, out_indices=(2,), frozen_stages=1),
    dict(PLAIN, position_encoding=PEG, out_indices=(0, 2), frozen_stages=3),
    *(dict(PLAIN, out_type=out_type, dist_token=True) for out_type in ('cls_token', 'gap', 'raw')), USELESS]


class Weighted(nn.Module):
    """A backbone with a weight for each output, so that there is something to learn also if all of it is frozen."""

    def __init__(self, backbone: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = MODELS.build(dict(arch=SMALL[backbone['type']], img_size=64, **backbone, _scope_='cpvt_mm'))
        self.weights = nn.Parameter(torch.arange(1., 5.))

    def forward(self, images: Tensor) -> Tensor:
        outs = [out for pair in self.backbone(images) for out in (pair if isinstance(pair, tuple) else (pair,))]
        # Of each number another share: norms fix the sum of all, and the sum of squares.
        means = [(out * torch.linspace(-1, 1, out[0].numel()).sin().view(out.shape[1:])).mean() for out in outs]
        return sum(weight * mean for weight, mean in zip(self.weights, means, strict=False))


def gradients(model: nn.Module, part: slice) -> dict[str, Tensor]:
    """Returns those of the second of two iterations. DDP raises in it if the first one's loss lacked a parameter."""
    images = torch.rand(4, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    for _ in range(2):
        model.zero_grad()
        model(images[part]).backward()
    return {name.removeprefix('module.'): p.grad for name, p in model.named_parameters() if p.requires_grad}


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2,
                            timeout=timedelta(seconds=120))
    torch.save([gradients(MMDistributedDataParallel(Weighted(case).double().train(), find_unused_parameters=False),
                          slice(2 * rank, 2 * rank + 2)) for case in CASES], folder / f'{rank}.pth')
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_give_the_gradients_of_one(tmp_path: Path) -> None:
    mp.spawn(work, (tmp_path,), nprocs=2)
    of_two = zip(*(torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(2)), strict=True)
    for case, both in zip(CASES, of_two, strict=True):
        model = Weighted(case).double().train()
        expected = gradients(model, slice(0, 4))
        trained = [key for key, parameter in model.named_parameters() if parameter.requires_grad]
        for found in both:
            assert list(found) == list(expected) == trained, case
            for key in trained:
                assert (found[key] - expected[key]).norm() <= SHARE * expected[key].norm(), (case, key)
        without = {key for key in trained if 'backbone.' in key and not expected[key].any()}
        assert without == ({f'backbone.position_encoding.0.convs.2.0.{part}' for part in ('weight', 'bias')}
                           if case is USELESS else set())
