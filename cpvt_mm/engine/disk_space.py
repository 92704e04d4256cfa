"""A full disk ends a run with a sentence."""
import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cpvt_mm.errors import UserError

# No space, no quota, and a file larger than the limit.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LogFile(logging.FileHandler):
    """A log file. A full disk is an error: logging itself would print a traceback for each line, and go on."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError) and error.errno in FULL:
            raise OSError(error.errno, error.strerror, self.baseFilename) from error
        super().handleError(record)


def replace_log_files(logger: logging.Logger) -> None:
    """Has a logger write to the same files by `LogFile`."""
    for handler in list(logger.handlers):
        if type(handler) is logging.FileHandler:
            log_file = LogFile(handler.baseFilename)
            log_file.setLevel(handler.level)
            log_file.setFormatter(handler.formatter)
            log_file.filters = handler.filters
            logger.removeHandler(handler)
            handler.close()
            logger.addHandler(log_file)


@contextmanager
def full_disk_as_user_error(work_dir: str, resumable: bool) -> Iterator[None]:
    """Turns the error of a full disk into a UserError that says where to make room and how to go on.

    Args:
        work_dir: The folder of the run.
        resumable: Whether a run that has a checkpoint in `work_dir` can go on from it.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        last = Path(work_dir, 'last_checkpoint')
        how = f'go on from {last.read_text()} with --resume' if resumable and last.is_file() else 'start again'
        if error.filename:
            what, where = f'{error.filename} cannot be written', 'for it'
        else:
            what = 'A disk is full'
            where = f'in {work_dir} or in /dev/shm (the shared memory of data loader workers), whichever it is'
        raise UserError(f'{what} ({error.strerror}): make room {where}, then {how}.') from error
