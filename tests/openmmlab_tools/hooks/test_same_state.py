"""A resumed run keeps the schedule, optimizer and gradients of its checkpoint, or a sentence says what differs."""
import re
from pathlib import Path

import pytest
import torch

from openmmlab_tools.checkpoints.reading import read_checkpoint
from openmmlab_tools.engine import train
from openmmlab_tools.hooks.same_state import ACCUMULATED
from tests.helpers import read_anywhere
from tests.openmmlab_tools.resuming import segmentor

# Seven iterations, which update the weights in the 4th and in the 7th.
ACCUMULATING = {'train_cfg.max_iters': 7, 'optim_wrapper.accumulative_counts': 4}


def told(capsys: pytest.CaptureFixture, start: str) -> list[str]:
    return re.findall(f'^{start}.*$', capsys.readouterr().out, re.MULTILINE)


@pytest.mark.slow
def test_training_that_stops_early_says_so_and_can_be_resumed(toy_shapes: Path, tmp_path: Path,
                                                              capsys: pytest.CaptureFixture) -> None:
    def run(patience: int, resume: str | None = None) -> list[str]:
        hook = dict(type='EarlyStoppingHook', monitor='mIoU', rule='greater', min_delta=1000., patience=patience)
        options = {'train_cfg.max_iters': 9, 'train_cfg.val_interval': 3, 'custom_hooks': [hook],
                   'default_hooks.checkpoint.interval': 100}
        train(segmentor(toy_shapes, tmp_path, options), resume=resume)
        return told(capsys, 'Training stops early')

    [stopped] = run(patience=1)
    assert re.fullmatch(
        r'Training stops early, after iteration 6 of 9, because of mIoU, whose best value is [\d.]+: --resume '
        rf'continues from {tmp_path}/iter_6\.pth\.', stopped)
    checkpoint = read_checkpoint(tmp_path / 'iter_6.pth')
    assert (checkpoint['meta']['iter'], checkpoint['message_hub']['runtime_info']['last_validation']) == (6, 6)
    assert run(patience=9, resume='auto') == []
    assert read_checkpoint(tmp_path / 'iter_9.pth')['meta']['early_stopping'][0][0] == 1  # before its validation


@pytest.fixture(scope='module')
def whole(toy_shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('whole')
    train(segmentor(toy_shapes, folder, ACCUMULATING))
    return folder


def test_an_old_checkpoint_without_gradients_is_resumed_and_told(whole: Path, toy_shapes: Path, tmp_path: Path,
                                                                 capsys: pytest.CaptureFixture) -> None:
    checkpoint = read_anywhere(whole / 'iter_6.pth')
    del checkpoint[ACCUMULATED]
    assert not any(ACCUMULATED in read_checkpoint(whole / f'iter_{step}.pth') for step in (4, 7))  # after an update
    torch.save(checkpoint, tmp_path / 'old.pth')
    train(segmentor(toy_shapes, tmp_path, ACCUMULATING), resume=str(tmp_path / 'old.pth'))
    assert told(capsys, 'warning: .*gradients') == [
        'warning: The checkpoint was saved after iteration 6, while gradients were being accumulated, but contains no '
        'gradients. Gradients since the last update are lost.']
