import errno
import logging
import re
from pathlib import Path

import pytest

from cpvt_mm.engine.disk_space import LogFile, full_disk_as_user_error, replace_log_files
from cpvt_mm.errors import UserError

pytestmark = pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs a file that is always full')


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logger = logging.Logger('log')
    logger.addHandler(logging.FileHandler('/dev/full'))
    replace_log_files(logger)
    sentence = '/dev/full cannot be written (No space left on device): free space for it, then start again.'
    with pytest.raises(UserError, match=re.escape(sentence)), full_disk_as_user_error(str(tmp_path), resumable=True):
        logger.info('line')
    assert 'Traceback' not in capsys.readouterr().err


def test_what_to_go_on_from_is_named(tmp_path: Path) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    sentence = '/dev/full cannot be written (No space left on device): free space for it, then continue from iter_2.pth'
    with pytest.raises(UserError, match=re.escape(sentence)), full_disk_as_user_error(str(tmp_path), resumable=True):
        raise OSError(errno.ENOSPC, 'No space left on device', '/dev/full')


def test_a_full_disk_without_a_name_may_be_shared_memory(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised, full_disk_as_user_error(str(tmp_path), resumable=True):
        raise OSError(errno.ENOSPC, 'No space left on device')  # as a lock of multiprocessing raises it
    assert str(raised.value) == (
        f'A disk is full (No space left on device): free space in {tmp_path} or in /dev/shm (the shared '
        'memory of data loader workers), whichever it is, then start again.')


def test_without_a_way_to_resume_none_is_named(tmp_path: Path) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    with pytest.raises(UserError, match='then start again'), full_disk_as_user_error(str(tmp_path), resumable=False):
        raise OSError(errno.ENOSPC, 'No space left on device')


def test_other_errors_stay_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logger = logging.Logger('log')
    logger.addHandler(LogFile(tmp_path / 'a.log'))
    logger.info('%d', 'not a number')
    assert 'Logging error' in capsys.readouterr().err
    with pytest.raises(PermissionError), full_disk_as_user_error(str(tmp_path), resumable=True):
        raise PermissionError


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
