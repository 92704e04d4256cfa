import errno
import logging
import re
from pathlib import Path

import pytest

from cpvt_mm.engine.full_disk import report_full_disk
from cpvt_mm.errors import UserError

pytestmark = pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs a file that is always full')


def test_a_log_that_cannot_be_written_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logger = logging.Logger('log')
    logger.addHandler(logging.FileHandler('/dev/full'))
    sentence = '/dev/full cannot be written (No space left on device): make room for it, then start again.'
    with pytest.raises(UserError, match=re.escape(sentence)), report_full_disk(str(tmp_path)):
        logger.info('line')
    assert 'Traceback' not in capsys.readouterr().err


def test_what_to_go_on_from_is_named(tmp_path: Path) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    sentence = '/dev/full cannot be written (No space left on device): make room for it, then go on from iter_2.pth'
    with pytest.raises(UserError, match=re.escape(sentence)), report_full_disk(str(tmp_path)):
        raise OSError(errno.ENOSPC, 'No space left on device', '/dev/full')


def test_a_full_disk_without_a_name_may_be_shared_memory(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised, report_full_disk(str(tmp_path)):
        raise OSError(errno.ENOSPC, 'No space left on device')  # as of a lock of multiprocessing
    assert str(raised.value) == (
        f'A disk is full (No space left on device): make room in {tmp_path} or in /dev/shm (the shared '
        'memory of data loader workers), whichever it is, then start again.')


def test_other_errors_stay_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    logger = logging.Logger('log')
    logger.addHandler(logging.FileHandler(tmp_path / 'a.log'))
    with report_full_disk(str(tmp_path)):
        logger.info('%d', 'not a number')
    assert 'Logging error' in capsys.readouterr().err
    with pytest.raises(PermissionError), report_full_disk(str(tmp_path)):
        raise PermissionError
