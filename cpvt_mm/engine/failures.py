"""Explains errors of a run in one sentence: while it is built, in its first iteration, and on a full disk."""
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.runner import Runner

from cpvt_mm.errors import UserError, explain
from cpvt_mm.files import DISK_FULL, write_text

# Errors that have a clear message already, also those of a full disk, of missing files and of missing modules.
TOLD = (UserError, OSError, ImportError)


@dataclass
class Run:
    """A run that is being started.

    Attributes:
        runner: The runner; None until it is built.
    """
    runner: Runner | None = None


@contextmanager
def failures_as_user_errors(what: str, work_dir: str) -> Iterator[Run]:
    """Converts errors in the `with` block to a UserError; writes the traceback to `traceback.txt` in the work dir.

    After the first training iteration, errors are not converted, because the config is hardly their cause.

    Args:
        what: The beginning of the message, such as 'the test fails'.
        work_dir: The folder of the run.
    """
    run = Run()
    try:
        yield run
    except TOLD:
        raise
    except Exception as error:
        if run.runner and run.runner.message_hub.get_info('iter', 0):  # runner.iter would build the failed train loop
            raise
        path = Path(work_dir, 'traceback.txt')
        if is_main_process():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, traceback.format_exc())
        raise UserError(f'{what} ({explain(error, run.runner and run.runner.model)}): correct the config, or see the '
                        f'traceback in {path}.') from error


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
        if error.errno not in DISK_FULL:
            raise
        last = Path(work_dir, 'last_checkpoint')
        how = f'continue from {last.read_text()} with --resume' if resumable and last.is_file() else 'start again'
        if error.filename:
            what, where = f'{error.filename} cannot be written', 'for it'
        else:
            what = 'A disk is full'
            where = f'in {work_dir} or in /dev/shm (the shared memory of data loader workers), whichever it is'
        raise UserError(f'{what} ({error.strerror}): free space {where}, then {how}.') from error
