"""Turns errors of a run into sentences for users."""
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mmengine.dist import get_rank, is_main_process
from mmengine.runner import Runner
from torch.distributed import DistError

from openmmlab_tools.errors import UserError, explain, first_line, for_readers
from openmmlab_tools.files import DISK_FULL, write_text

from .loops import lost_workers
from .work_dir import INSTEAD, WorkDir


@dataclass
class RunState:
    """State of a run for `failures_as_user_errors`: its runner, and the iterations before it was resumed."""
    runner: Runner | None = None
    resumed: int | None = None


@contextmanager
def failures_as_user_errors(failure: str, work_dir: WorkDir, resumable: bool = False) -> Iterator[RunState]:
    """Converts errors in the `with` block to a UserError that begins with `what`; writes `traceback.txt` in `work_dir`.

    After the first training iteration since a resume, only a full disk, a work dir that is gone, and deaths and hangs
    of ranks and workers are converted, because the config is hardly the cause of others. The block fills the state. If
    it is `resumable`, the error says from which checkpoint to continue.
    """
    run = RunState()
    try:
        yield run
    except (UserError, ImportError):
        raise
    except OSError as error:  # others than these have a clear message already
        if fault := _lost_disk(error, work_dir):
            how = work_dir.how_to_continue() if resumable else 'start again'
            raise UserError(f'{fault}, then {how}.') from error
        raise
    except Exception as error:
        if isinstance(error, DistError) or 'gloo/' in first_line(error):  # gloo's errors are plain RuntimeErrors
            raise UserError(f'rank {get_rank()} waits for another rank, which has died or hangs longer than env_cfg.'
                            f'dist_cfg.timeout ({first_line(error)}): see why in its log, then continue with --resume.'
                            ) from error
        if lost := lost_workers(error):
            raise lost from error
        # runner.iter would build the failed train loop.
        if run.runner and run.runner.message_hub.get_info('iter', 0) > (run.resumed or 0):
            raise
        path = work_dir.path / 'traceback.txt'
        if is_main_process():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, for_readers(traceback.format_exc()))
        todo = f'correct the config, or {INSTEAD}' if run.resumed is not None else 'correct the config'
        raise UserError(f'{failure} ({explain(error)}): {todo}, or see the traceback in {path}.') from error


def _lost_disk(error: OSError, work_dir: WorkDir) -> str:
    """Returns what to do about a full disk or a work dir that is gone; '' for other errors."""
    if isinstance(error, FileNotFoundError) and error.filename and not work_dir.path.is_dir():
        return f'work dir {work_dir.path} was removed or renamed during the run: put it back if you can'
    return '' if error.errno not in DISK_FULL else (
        f'{error.filename or "a file"} cannot be written ({error.strerror}): free space for it, in {work_dir.path} or '
        'in /dev/shm, the shared memory of data loader workers')
