"""A longer schedule does not become that of a resumed run, and the run says so; training that stops early goes on."""
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import CosineAnnealingLR, LinearLR, MultiStepLR, OptimWrapper, PolyLR
from mmengine.runner import EpochBasedTrainLoop

from openmmlab_runs.checkpoints.reading import read_checkpoint
from openmmlab_runs.engine import load_config, train
from openmmlab_runs.hooks.schedule import last_rate
from tests.conftest import UPERNET, toy_overrides

SMALL = {'train_cfg.val_interval': 100, 'train_dataloader.dataset.pipeline.2.scale': (64, 64),
         'val_dataloader.dataset.pipeline.1.scale': (64, 64), 'default_hooks.checkpoint.interval': 2,
         'default_hooks.checkpoint.max_keep_ckpts': -1, 'log_level': 'INFO', 'randomness': dict(seed=3)}


def toy(data: Path, folder: Path, **options: object) -> Config:
    return load_config(UPERNET, toy_overrides(data, **{**SMALL, **options}), str(folder))


def rates(checkpoint: Path) -> list[float]:
    return read_checkpoint(checkpoint)['message_hub']['log_scalars']['train/lr']['log_history'].tolist()


@pytest.fixture(scope='module')
def short(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('short')
    train(toy(toy_shapes, folder, **{'train_cfg.max_iters': 2, 'param_scheduler': [poly(2)]}))
    return folder / 'iter_2.pth'


def poly(end: int) -> dict[str, object]:
    return dict(type='PolyLR', power=1., begin=0, end=end, eta_min=1e-5, by_epoch=False)


@pytest.mark.parametrize('options, is_told', [
    ({'train_cfg.max_iters': 4, 'param_scheduler': [poly(4)]}, True), ({'train_cfg.max_iters': 4}, True),
    ({'train_cfg.max_iters': 2}, False)])
def test_a_longer_schedule_is_told_with_the_rate_that_stays(options: dict, is_told: bool, short: Path, toy_shapes: Path,
                                                            tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    train(toy(toy_shapes, tmp_path, **{'param_scheduler': [poly(2)], **options}), resume=str(short))
    told = re.findall('^warning: (The learning rate .*)$', capsys.readouterr().out, re.MULTILINE)
    assert told == [
        'The learning rate follows the schedule of the checkpoint, not that of the config: in the last iteration, 4, '
        'it is 1e-05. For a new schedule, start from the weights: --cfg-options load_from=CHECKPOINT instead of '
        '--resume.'] * is_told
    if is_told:
        assert rates(tmp_path / 'iter_4.pth')[-1] == pytest.approx(1e-5)


@pytest.mark.parametrize('epochs', [False, True])
@pytest.mark.parametrize('done', [0, 4, 8])
def test_the_last_rate_is_that_which_schedulers_reach(done: int, epochs: bool) -> None:
    """A warm-up by iteration, and a decay by epoch of two iterations; of three groups of parameters."""
    layers = [torch.nn.Linear(1, 1) for _ in range(3)]
    wrapper = OptimWrapper(torch.optim.SGD([dict(params=one.parameters(), lr=rate)
                                            for one, rate in zip(layers, (1., 2., 4.), strict=True)], lr=8.))
    wrapper.base_param_settings['lr'] = 8.
    by_epoch = [MultiStepLR(wrapper, milestones=[2, 4], by_epoch=True)] if epochs else [PolyLR(
        wrapper, begin=2, end=7, by_epoch=False), CosineAnnealingLR(wrapper, begin=7, end=20, by_epoch=False)]
    schedulers = [LinearLR(wrapper, start_factor=0.1, begin=0, end=3, by_epoch=False), *by_epoch]
    runner = SimpleNamespace(iter=done, max_iters=10, train_dataloader=[0, 1],
                             train_loop=EpochBasedTrainLoop.__new__(EpochBasedTrainLoop) if epochs else None)
    expected, found = 0., []
    for step in range(10):
        if step == done:
            found = [last_rate(wrapper.param_groups[-1], schedulers, runner)]
        expected = wrapper.param_groups[-1]['lr']
        for one in schedulers:
            if not one.by_epoch or step % 2:
                one.step()
    assert found == [pytest.approx(expected)] and expected != 8



def stopping(data: Path, folder: Path, patience: int, **options: object) -> Config:
    hook = dict(type='EarlyStoppingHook', monitor='mIoU', rule='greater', min_delta=1000., patience=patience)
    return toy(data, folder, **{'train_cfg.max_iters': 9, 'train_cfg.val_interval': 3, 'custom_hooks': [hook],
                                'default_hooks.checkpoint.interval': 100, **options})


@pytest.mark.slow
def test_training_that_stops_early_says_so_and_can_be_resumed(toy_shapes: Path, tmp_path: Path,
                                                              capsys: pytest.CaptureFixture) -> None:
    train(stopping(toy_shapes, tmp_path, patience=1))
    told = re.findall('^Training stops early.*$', capsys.readouterr().out, re.MULTILINE)
    assert len(told) == 1 and re.fullmatch(
        r'Training stops early, after iteration 6 of 9, because of mIoU, whose best value is [\d.]+: --resume '
        rf'continues from {tmp_path}/iter_6\.pth\.', told[0])
    checkpoint = read_checkpoint(tmp_path / 'iter_6.pth')
    assert (checkpoint['meta']['iter'], checkpoint['message_hub']['runtime_info']['last_validation']) == (6, 6)
    train(stopping(toy_shapes, tmp_path, patience=9), resume='auto')
    assert read_checkpoint(tmp_path / 'iter_9.pth')['meta']['early_stopping'][0][0] == 1  # before its validation
    assert 'Training stops early' not in capsys.readouterr().out
