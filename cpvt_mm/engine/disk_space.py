"""Ends a run with a clear message if a disk is full."""
import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cpvt_mm.errors import UserError

# No space, quota exceeded, and file size limit exceeded.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LogFile(logging.FileHandler):
    """A log file handler that raises an error if the disk is full; `logging` would only print a traceback per line."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError) and error.errno in FULL:
            raise OSError(error.errno, error.strerror, self.baseFilename) from error
        super().handleError(record)


def replace_log_files(logger: logging.Logger) -> None:
    """Replaces the file handlers of a logger by `LogFile` handlers for the same files."""
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
    """Converts the error of a full disk into a UserError that says where to free space and how to continue.

    Args:
        work_dir: The folder of the run.
        resumable: Whether the run can be resumed from a checkpoint in `work_dir`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        last = Path(work_dir, 'last_checkpoint')
        how = f'continue from {last.read_text()} with --resume' if resumable and last.is_file() else 'start again'
        if error.filename:
            what, where = f'{error.filename} cannot be written', 'for it'
        else:
            what = 'A disk is full'
            where = f'in {work_dir} or in /dev/shm (the shared memory of data loader workers), whichever it is'
        raise UserError(f'{what} ({error.strerror}): free space {where}, then {how}.') from error
