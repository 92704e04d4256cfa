"""Explains errors that occur while a run is built, or in its first iteration, in one sentence."""
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.runner import Runner

from cpvt_mm.errors import UserError, explain
from cpvt_mm.files import write_text

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
