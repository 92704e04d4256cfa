"""A full disk ends training with a sentence."""
import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cpvt_mm.errors import UserError

# No space, no quota, and more than the limit of one file.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def report_full_disk(work_dir: str) -> Iterator[None]:
    """Turns the error of a full disk, also one that logging meets, into a UserError that tells how to go on."""
    usual = logging.FileHandler.handleError
    logging.FileHandler.handleError = _raise_if_full
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        note = Path(work_dir, 'last_checkpoint')
        how = f'go on from {note.read_text()} with --resume' if note.is_file() else 'start again'
        if error.filename:
            what, where = f'{error.filename} cannot be written', 'for it'
        else:
            what = 'A disk is full'
            where = f'in {work_dir} or in /dev/shm (the shared memory of data loader workers), whichever it is'
        raise UserError(f'{what} ({error.strerror}): make room {where}, then {how}.') from error
    finally:
        logging.FileHandler.handleError = usual


def _raise_if_full(handler: logging.FileHandler, record: logging.LogRecord) -> None:
    """Replaces what prints a traceback for each line that a log cannot take, and goes on."""
    error = sys.exc_info()[1]
    if isinstance(error, OSError) and error.errno in FULL:
        raise OSError(error.errno, error.strerror, handler.baseFilename) from error
    logging.Handler.handleError(handler, record)
