"""The log in a checkpoint is of plain types, and comes back to the bit; a log on a full disk ends the run."""
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.runner import Runner

from cpvt_mm.engine import load_config, train
from cpvt_mm.hooks import PlainLogHook
from cpvt_mm.hooks.run_log import LogFile, replace_log_files
from tests.conftest import UPERNET, read_anywhere, toy_overrides
from tests.refusals import refusal


def test_a_log_comes_back_to_the_bit(tmp_path: Path) -> None:
    hub = MessageHub('written')
    buffers = {'train/loss': HistoryBuffer([0.1, float('nan'), float('-inf'), 1 / 3], [2, 2, 2, 1]),
               'train/count': HistoryBuffer([1, 2], [1, 1], max_length=3), 'val/mIoU': HistoryBuffer()}
    buffers['train/count'].update(2**53 + 1)
    hub.log_scalars.update(buffers)
    hub.update_info('best_score', np.float64(1 / 3))
    hub.update_info('palette', np.arange(6).reshape(2, 3))
    checkpoint = dict(
        meta=dict(iter=np.int64(3), dataset_meta=dict(classes=('a', 'b'))), state_dict={},
        message_hub=dict(hub.state_dict(), log_scalars=buffers), param_schedulers=[dict(best=np.float32(2))])
    hook = PlainLogHook()
    hook.before_save_checkpoint(None, checkpoint)
    torch.save(checkpoint, tmp_path / 'a.pth')
    read = read_anywhere(tmp_path / 'a.pth')
    assert read['meta'] == dict(iter=3, dataset_meta=dict(classes=('a', 'b')))
    assert read['param_schedulers'] == [dict(best=2.)]

    hook.after_load_checkpoint(None, read)
    resumed = MessageHub('resumed')
    resumed.load_state_dict(read['message_hub'])
    assert resumed.get_info('best_score') == 1 / 3
    assert resumed.get_info('palette') == [[0, 1, 2], [3, 4, 5]]
    assert list(resumed.log_scalars) == list(buffers)
    for name, buffer in buffers.items():
        found = resumed.get_scalar(name)
        assert found.max_length == buffer.max_length
        for theirs, ours in zip(buffer.data, found.data, strict=True):
            assert ours.dtype == theirs.dtype and ours.tobytes() == theirs.tobytes()


def test_logs_of_mmengines_own_checkpoints_stay() -> None:
    log = HistoryBuffer([1.], [1])
    checkpoint = dict(message_hub=dict(log_scalars=dict(loss=log)))
    PlainLogHook().after_load_checkpoint(None, checkpoint)
    assert checkpoint['message_hub']['log_scalars']['loss'] is log
    PlainLogHook().after_load_checkpoint(None, dict(state_dict={}))  # weights alone


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs a file that is always full')
def test_a_log_on_a_full_disk_ends_training_without_a_traceback(toy_shapes: Path, tmp_path: Path,
                                                                capsys: pytest.CaptureFixture) -> None:

    def fill_up(runner: Runner) -> None:
        file, = (handler for handler in runner.logger.handlers if isinstance(handler, logging.FileHandler))
        file.close()  # opens the file of that name when it next writes
        file.baseFilename = '/dev/full'
        try:
            runner.logger.error('the last line')
        finally:
            runner.logger.removeHandler(file)  # later tests use this logger, too

    hook = Hook()
    hook.before_train = fill_up
    cfg = load_config(UPERNET, toy_overrides(toy_shapes, **{'train_cfg.max_iters': 1}), str(tmp_path))
    assert refusal(train, cfg, hooks=[hook]) == (
        '/dev/full cannot be written (No space left on device): free space for it, then start again.')
    assert 'Traceback' not in capsys.readouterr().err


def test_other_errors_of_a_log_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logger = logging.Logger('log')
    logger.addHandler(LogFile(tmp_path / 'a.log'))
    logger.info('%d', 'not a number')
    assert 'Logging error' in capsys.readouterr().err


def test_log_files_are_replaced_by_like_ones(tmp_path: Path) -> None:
    logger, stream = logging.Logger('log'), logging.StreamHandler()
    file = logging.FileHandler(tmp_path / 'a.log')
    file.setLevel(logging.WARNING)
    file.setFormatter(logging.Formatter('%(levelname)s %(message)s'))
    file.addFilter(lambda record: record.getMessage() != 'secret')
    logger.addHandler(file)
    logger.addHandler(stream)
    logger.warning('first')
    replace_log_files(logger)
    assert {type(handler) for handler in logger.handlers} == {logging.StreamHandler, LogFile}
    for level, message in ((logging.WARNING, 'secret'), (logging.INFO, 'quiet'), (logging.ERROR, 'second')):
        logger.log(level, message)
    assert (tmp_path / 'a.log').read_text() == 'WARNING first\nERROR second\n'
