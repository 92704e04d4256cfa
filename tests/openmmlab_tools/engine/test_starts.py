"""The start of a run: sentences refuse what cannot be trained or resumed, and tell what a resumed run keeps."""
from pathlib import Path
from typing import Any

import pytest
import torch

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import train
from openmmlab_tools.hooks.same_state import STATE
from tests.helpers import refusal
from tests.openmmlab_tools.hooks.test_same_state import told
from tests.openmmlab_tools.resuming import segmentor

LINEAR = dict(type='LinearLR', begin=0, end=2, start_factor=0.5, by_epoch=False)
POLY = dict(type='PolyLR', power=1., begin=0, end=4, by_epoch=False)
# Of a run of two iterations, with two schedulers and an average of the weights.
SHORT = {'train_cfg.max_iters': 2, 'param_scheduler': [LINEAR, POLY], 'custom_hooks': [dict(type='EMAHook')]}
LONGER = {**SHORT, 'train_cfg.max_iters': 4}
DATASET = 'train_dataloader.dataset'


@pytest.fixture(scope='module')
def short(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('short')
    train(segmentor(toy_shapes, folder, SHORT))
    return folder / 'iter_2.pth'


@pytest.mark.parametrize('options, words', [
    ({'optim_wrapper.optimizer.type': 'AdmaW'}, 'AdmaW, which is not a registered optimizer: did you mean AdamW'),
    ({'optim_wrapper': dict(_delete_=True, constructor='OfMine')}, 'optim_wrapper of the config has no optimizer'),
    ({'runner_type': 'FlexibleRunner'}, 'runner_type is FlexibleRunner, which is not a kind of Runner'),
    ({f'{DATASET}.pipeline.1.reduce_zero_label': True}, '000.jpg (AssertionError: Initialize dataset with'),
    ({f'{DATASET}.data_root': 'no'},
     f'no/images/training does not exist: put the file there, or correct {DATASET}.data_root'),
    ({'load_from': 'other.pth'}, 'tensors of the model: use a checkpoint of such a model, or load weights'),
    ({'optim_wrapper.optimizer.lr': 1e30, 'train_cfg.max_iters': 9}, 'Training has stopped: ')])
def test_what_cannot_be_trained_is_refused(options: dict[str, Any], words: str, toy_shapes: Path, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(dict(state_dict=dict(weight=torch.ones(1))), 'other.pth')
    assert words in refusal(train, segmentor(toy_shapes, tmp_path, options))


@pytest.mark.parametrize('options, lacks, words', [
    ({'optim_wrapper.optimizer': dict(_delete_=True, type='SGD', lr=1e-3, weight_decay=0.05)}, '',
     'in the config the optimizer is SGD (not AdamW): restore the old value, or start from its weights with '),
    ({'optim_wrapper.optimizer.type': 'Adam'}, '', 'the optimizer is Adam (not AdamW)'),  # with the same state
    ({'optim_wrapper.paramwise_cfg': None}, '', 'backbone.layer1.0.conv1.weight in the optimizer is number '),
    ({'model.backbone.frozen_stages': 1}, '', ' in the optimizer is not set (not number '),
    ({'param_scheduler': [POLY]}, '', 'the schedule of the optimizer is PolyLR (not LinearLR and PolyLR)'),
    ({'param_scheduler': None}, '', 'the schedule of the optimizer is none (not LinearLR and PolyLR)'),
    ({'custom_hooks': []}, '', 'in the config EMAHook is not set, whose averages are the weights of the checkpoint'),
    ({'train_cfg.max_iters': 1}, '', 'in the config train_cfg.max_iters is 1, but the checkpoint was saved after 2'),
    ({'train_cfg': dict(_delete_=True, by_epoch=True, max_epochs=9)}, '',
     'unit of the schedule is epoch (not iteration)'),
    ({'model.decode_head.channels': 16}, '', 'iter_2.pth does not fit the model'),
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
    # As where the config says that training resumes, not the caller.
    resumed = {'resume': True, 'load_from': str(short)}
    assert words in refusal(train, segmentor(toy_shapes, tmp_path, {**LONGER, **resumed, **options}))
    assert (tmp_path / 'traceback.txt').exists() == (lacks == 'betas')


def test_a_longer_schedule_is_told_and_the_rate_stays_and_a_complete_training_says_so(
        short: Path, toy_shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    longer = {**LONGER, 'param_scheduler': [LINEAR, dict(POLY, end=8)]}
    train(segmentor(toy_shapes, tmp_path, longer), resume=str(short))
    assert told(capsys, 'warning: The learning rate') == [
        'warning: The learning rate follows the schedule in the checkpoint, not the schedule in the config. For a new '
        'schedule, start from the weights: pass --cfg-options load_from=CHECKPOINT instead of --resume.']
    log = read_checkpoint(tmp_path / 'iter_4.pth')['message_hub']['log_scalars']['train/lr']
    assert log['log_history'].tolist() == pytest.approx([1e-3 / 2, 2e-3 / 3, 1e-3 / 3, 0])
    train(segmentor(toy_shapes, tmp_path, SHORT), resume=str(short))
    assert told(capsys, 'Training is complete') == [
        'Training is complete already: the checkpoint was saved after all 2 of train_cfg.max_iters.']
