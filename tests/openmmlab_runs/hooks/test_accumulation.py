"""A run that is interrupted inside an accumulation of gradients ends as one without interruption, to the bit."""
import copy
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.config import Config
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import Tensor, nn

from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.engine import load_config, train
from openmmlab_runs.hooks.accumulation import ACCUMULATED, accumulated, put_back
from openmmlab_runs.hooks.exact_resume import ExactResumeHook
from tests.conftest import UPERNET, read_anywhere, toy_overrides
from tests.openmmlab_runs.engine.test_run import run_log

Make = Callable[..., Config]


def toy(data: Path, work_dir: Path, **options: object) -> Config:
    """Seven iterations, which update the weights in the 4th and in the 7th."""
    small = {
        'train_cfg.max_iters': 7, 'train_cfg.val_interval': 100, 'optim_wrapper.accumulative_counts': 4,
        'train_dataloader.dataset.pipeline.2.scale': (64, 64), 'model.backbone.drop_path_rate': 0.3,
        'default_hooks.checkpoint.interval': 2, 'default_hooks.checkpoint.max_keep_ckpts': -1,
        'randomness': dict(seed=3)}
    return load_config(UPERNET, toy_overrides(data, **{**small, **options}), str(work_dir))


@pytest.fixture(scope='module')
def config(toy_shapes: Path) -> Make:
    return partial(toy, toy_shapes)


@pytest.fixture(scope='module')
def whole(config: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('whole')
    train(config(folder))
    return folder


def assert_equal(first: Path, second: Path) -> None:
    for part in ('state_dict', 'optimizer'):
        torch.testing.assert_close(*(read_checkpoint(path)[part] for path in (first, second)), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize('step', [2, 4, 6])
def test_a_checkpoint_has_the_gradients_of_an_accumulation_that_is_under_way(
        step: int, config: Make, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoint = read_anywhere(whole / f'iter_{step}.pth')
    assert (ACCUMULATED in checkpoint) == (step != 4)  # after an update there are none
    train(config(tmp_path), resume=str(whole / f'iter_{step}.pth'))
    assert 'gradients' not in capsys.readouterr().out and 'are lost' not in run_log(tmp_path)
    assert_equal(tmp_path / 'iter_7.pth', whole / 'iter_7.pth')
    assert ACCUMULATED not in read_checkpoint(whole / 'iter_7.pth')


def test_an_old_checkpoint_without_gradients_is_resumed_and_told(config: Make, whole: Path, tmp_path: Path,
                                                                 capsys: pytest.CaptureFixture) -> None:
    checkpoint = read_checkpoint(whole / 'iter_6.pth')
    del checkpoint[ACCUMULATED]
    torch.save(checkpoint, tmp_path / 'old.pth')
    train(config(tmp_path, log_level='INFO'), resume=str(tmp_path / 'old.pth'))
    told = re.findall('^warning: .*gradients.*$', capsys.readouterr().out, re.MULTILINE)
    assert told == ['warning: The checkpoint is from the middle of an accumulation of gradients, after iteration 6, '
                    'but has no gradients: those since the last update are lost.']


def test_each_of_several_optimizers_goes_on_where_it_was() -> None:
    """Two optimizers, one of which takes a step after two backward passes, the other after three."""
    def build() -> SimpleNamespace:
        torch.manual_seed(0)
        model = nn.ModuleDict(dict(first=nn.Linear(3, 2), second=nn.Linear(3, 2), frozen=nn.Linear(3, 2)))
        parts = {name: OptimWrapper(torch.optim.SGD(model[name].parameters(), lr=0.1, momentum=0.9), counts)
                 for name, counts in (('first', 2), ('second', 3))}
        return SimpleNamespace(model=model, optim_wrapper=OptimWrapperDict(**parts), iter=4)

    def run(runner: SimpleNamespace, steps: range) -> dict[str, Tensor]:
        for step in steps:
            data = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
            for name, wrapper in runner.optim_wrapper.items():
                wrapper.update_params((runner.model[name](data) + runner.model.frozen(data)).square().mean())
        return runner.model.state_dict()

    runner, resumed, hook = build(), build(), ExactResumeHook()
    run(runner, range(4))
    content = copy.deepcopy(accumulated(runner)[ACCUMULATED])  # as a file does
    assert content['counts'] == dict(first=4, second=4)
    assert list(content['gradients']) == ['second.weight', 'second.bias']  # only what an optimizer trains
    resumed.model.load_state_dict(runner.model.state_dict())
    resumed.optim_wrapper.load_state_dict(copy.deepcopy(runner.optim_wrapper.state_dict()))
    put_back(resumed, content['gradients'])
    hook.counts = content['counts']
    hook.before_train(resumed)
    torch.testing.assert_close(run(resumed, range(4, 11)), run(runner, range(4, 11)), rtol=0, atol=0)


def in_a_group(rank: int, folder: Path, data: Path) -> None:
    """Trains in a group of two, then resumes between two updates."""
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    for name, resume in (('whole', None), ('resumed', str(folder / 'whole/iter_2.pth'))):
        train(toy(data, folder / name, **{'train_dataloader.batch_size': 1}), resume=resume)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_have_the_mean_of_their_gradients(toy_shapes: Path, tmp_path: Path) -> None:
    mp.spawn(in_a_group, (tmp_path, toy_shapes), nprocs=2)
    # Each rank has had the mean since the checkpoint, in the run without interruption, too.
    assert_equal(tmp_path / 'whole/iter_7.pth', tmp_path / 'resumed/iter_7.pth')
