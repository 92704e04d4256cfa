"""A resumed run goes on with its schedule, after an early stop, too, and with gradients that accumulate."""
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mmengine.config import Config

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import load_config, train
from openmmlab_tools.hooks.same_state import ACCUMULATED, STATE
from tests.helpers import read_anywhere, refusal, toy_overrides
from tests.openmmlab_tools.engine.test_run import run_log
from tests.openmmlab_tools.toy import SEGMENTOR

LINEAR = dict(type='LinearLR', begin=0, end=2, start_factor=0.5, by_epoch=False)
POLY = dict(type='PolyLR', power=1., begin=0, end=4, by_epoch=False)
# Of a run of two iterations, with two schedulers and an average of the weights.
SHORT = {'train_cfg.max_iters': 2, 'param_scheduler': [LINEAR, POLY], 'custom_hooks': [dict(type='EMAHook')]}
LONGER = {**SHORT, 'train_cfg.max_iters': 4}
# Seven iterations, which update the weights in the 4th and in the 7th.
ACCUMULATING = {'train_cfg.max_iters': 7, 'optim_wrapper.accumulative_counts': 4,
                'model.decode_head.dropout_ratio': 0.3}


def toy(data: Path, folder: Path, options: dict[str, object]) -> Config:
    small = {'train_cfg.val_interval': 100, 'train_dataloader.dataset.pipeline.2.scale': (64, 64),
             'val_dataloader.dataset.pipeline.1.scale': (64, 64), 'default_hooks.checkpoint.interval': 2,
             'default_hooks.checkpoint.max_keep_ckpts': -1, 'log_level': 'INFO', 'randomness': dict(seed=3)}
    return load_config(SEGMENTOR, toy_overrides(data, **{**small, **options}), str(folder))


@pytest.fixture(scope='module')
def short(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('short')
    train(toy(toy_shapes, folder, SHORT))
    return folder / 'iter_2.pth'


def told(capsys: pytest.CaptureFixture, start: str) -> list[str]:
    return re.findall(f'^{start}.*$', capsys.readouterr().out, re.MULTILINE)


def test_a_longer_schedule_is_told_and_the_rate_stays_and_a_complete_training_says_so(
        short: Path, toy_shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    longer = {**LONGER, 'param_scheduler': [LINEAR, dict(POLY, end=8)]}
    train(toy(toy_shapes, tmp_path, longer), resume=str(short))
    assert told(capsys, 'warning: The learning rate') == [
        'warning: The learning rate follows the schedule of the checkpoint, not that of the config. For a new schedule,'
        ' start from the weights: --cfg-options load_from=CHECKPOINT instead of --resume.']
    log = read_checkpoint(tmp_path / 'iter_4.pth')['message_hub']['log_scalars']['train/lr']
    assert log['log_history'].tolist() == pytest.approx([1e-3 / 2, 2e-3 / 3, 1e-3 / 3, 0])
    train(toy(toy_shapes, tmp_path, SHORT), resume=str(short))
    assert told(capsys, 'Training is complete') == [
        'Training is complete already: the checkpoint was saved after all 2 of train_cfg.max_iters.']


@pytest.mark.parametrize('options, lacks, words', [
    ({'optim_wrapper.optimizer': dict(_delete_=True, type='SGD', lr=1e-3, weight_decay=0.05)}, '',
     'in the config the optimizer is SGD (not AdamW): set it as it was, or start from its weights with --cfg-options '),
    ({'optim_wrapper.optimizer.type': 'Adam'}, '', 'the optimizer is Adam (not AdamW)'),  # with the same state
    ({'optim_wrapper.paramwise_cfg': None}, '', 'backbone.layer1.0.conv1.weight in the optimizer is number '),
    ({'model.backbone.frozen_stages': 1}, '', ' in the optimizer is not set (not number '),
    ({'param_scheduler': [POLY]}, '', 'the schedule of the optimizer is PolyLR (not LinearLR and PolyLR)'),
    ({'param_scheduler': None}, '', 'the schedule of the optimizer is none (not LinearLR and PolyLR)'),
    ({'custom_hooks': []}, '', 'in the config EMAHook is not set, whose averages are the weights of the checkpoint'),
    ({'train_cfg.max_iters': 1}, '', 'in the config train_cfg.max_iters is 1, but the checkpoint was saved after 2'),
    ({'train_cfg': dict(_delete_=True, by_epoch=True, max_epochs=9)}, '',
     'unit of the schedule is epoch (not iteration)'),
    # Checkpoints that do not tell their kind.
    ({}, 'param_schedulers', 'param_scheduler has 2 entries, but the checkpoint has the state of 0'),
    ({}, 'betas', "(KeyError: 'betas'): correct the config, or start from its weights with --cfg-options load_f")
    ])
def test_a_checkpoint_of_another_kind_of_run_is_told_before_training(
        options: dict, lacks: str, words: str, short: Path, toy_shapes: Path, tmp_path: Path) -> None:
    if lacks:
        checkpoint = read_checkpoint(short)
        for part in (checkpoint, checkpoint['meta'], *checkpoint['optimizer']['param_groups']):
            for name in (STATE, lacks):
                part.pop(name, None)
        torch.save(checkpoint, short := tmp_path / 'old.pth')
    assert words in refusal(train, toy(toy_shapes, tmp_path, {**LONGER, **options}), resume=str(short))
    assert (tmp_path / 'traceback.txt').exists() == (lacks == 'betas')


@pytest.mark.slow
def test_training_that_stops_early_says_so_and_can_be_resumed(toy_shapes: Path, tmp_path: Path,
                                                              capsys: pytest.CaptureFixture) -> None:
    def run(patience: int, resume: str | None = None) -> list[str]:
        hook = dict(type='EarlyStoppingHook', monitor='mIoU', rule='greater', min_delta=1000., patience=patience)
        train(toy(toy_shapes, tmp_path, {'train_cfg.max_iters': 9, 'train_cfg.val_interval': 3, 'custom_hooks': [hook],
                                         'default_hooks.checkpoint.interval': 100}), resume=resume)
        return told(capsys, 'Training stops early')

    [stopped] = run(patience=1)
    assert re.fullmatch(
        r'Training stops early, after iteration 6 of 9, because of mIoU, whose best value is [\d.]+: --resume '
        rf'continues from {tmp_path}/iter_6\.pth\.', stopped)
    checkpoint = read_checkpoint(tmp_path / 'iter_6.pth')
    assert (checkpoint['meta']['iter'], checkpoint['message_hub']['runtime_info']['last_validation']) == (6, 6)
    assert run(patience=9, resume='auto') == []
    assert read_checkpoint(tmp_path / 'iter_9.pth')['meta']['early_stopping'][0][0] == 1  # before its validation


def assert_same(first: Path, second: Path) -> None:
    for part in ('state_dict', 'optimizer'):
        torch.testing.assert_close(*(read_checkpoint(folder / 'iter_7.pth')[part] for folder in (first, second)),
                                   rtol=0, atol=0)


@pytest.fixture(scope='module')
def whole(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('whole')
    train(toy(toy_shapes, folder, ACCUMULATING))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('step', [4, 6])
def test_a_checkpoint_has_the_gradients_of_an_accumulation_that_is_under_way(
        step: int, whole: Path, toy_shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    checkpoint = read_anywhere(whole / f'iter_{step}.pth')
    assert (ACCUMULATED in checkpoint) == (step != 4)  # after an update there are none
    train(toy(toy_shapes, tmp_path, ACCUMULATING), resume=str(whole / f'iter_{step}.pth'))
    assert not told(capsys, '.*gradients') and 'are lost' not in run_log(tmp_path)
    assert_same(tmp_path, whole)
    assert ACCUMULATED not in read_checkpoint(whole / 'iter_7.pth')


def test_an_old_checkpoint_without_gradients_is_resumed_and_told(whole: Path, toy_shapes: Path, tmp_path: Path,
                                                                 capsys: pytest.CaptureFixture) -> None:
    checkpoint = read_checkpoint(whole / 'iter_6.pth')
    del checkpoint[ACCUMULATED]
    torch.save(checkpoint, tmp_path / 'old.pth')
    train(toy(toy_shapes, tmp_path, ACCUMULATING), resume=str(tmp_path / 'old.pth'))
    assert told(capsys, 'warning: .*gradients') == [
        'warning: The checkpoint is from the middle of an accumulation of gradients, after iteration 6, but has no '
        'gradients: those since the last update are lost.']


def in_a_group(rank: int, folder: Path, data: Path) -> None:
    """Trains in a group of two, then resumes between two updates."""
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method=f'file://{folder}/store', rank=rank, world_size=2)
    for name, resume in (('whole', None), ('resumed', str(folder / 'whole/iter_2.pth'))):
        train(toy(data, folder / name, {**ACCUMULATING, 'train_dataloader.batch_size': 1}), resume=resume)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_ranks_have_the_mean_of_their_gradients(toy_shapes: Path, tmp_path: Path) -> None:
    mp.spawn(in_a_group, (tmp_path, toy_shapes), nprocs=2)
    # Each rank has had the mean since the checkpoint, in the run without interruption, too.
    assert_same(tmp_path / 'whole', tmp_path / 'resumed')
