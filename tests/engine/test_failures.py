"""Errors of a run in one sentence."""
import errno
import re
from pathlib import Path

import pytest

from cpvt_mm.engine.failures import full_disk_as_user_error
from cpvt_mm.errors import UserError

FULL = OSError(errno.ENOSPC, 'No space left on device', 'a.log')


def test_what_to_go_on_from_is_named(tmp_path: Path) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    sentence = 'a.log cannot be written (No space left on device): free space for it, then continue from iter_2.pth'
    with pytest.raises(UserError, match=re.escape(sentence)), full_disk_as_user_error(str(tmp_path), resumable=True):
        raise FULL


def test_a_full_disk_without_a_name_may_be_shared_memory(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised, full_disk_as_user_error(str(tmp_path), resumable=True):
        raise OSError(errno.ENOSPC, 'No space left on device')  # as a lock of multiprocessing raises it
    assert str(raised.value) == (
        f'A disk is full (No space left on device): free space in {tmp_path} or in /dev/shm (the shared '
        'memory of data loader workers), whichever it is, then start again.')


def test_without_a_way_to_resume_none_is_named(tmp_path: Path) -> None:
    (tmp_path / 'last_checkpoint').write_text('iter_2.pth')
    with pytest.raises(UserError, match='then start again'), full_disk_as_user_error(str(tmp_path), resumable=False):
        raise FULL


def test_other_errors_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), full_disk_as_user_error(str(tmp_path), resumable=True):
        raise PermissionError
