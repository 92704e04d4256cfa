"""Runs tasks several at a time: in processes of this machine, or as jobs of Slurm (submitit)."""
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from openmmlab_tools.errors import UserError, first_line
from openmmlab_tools.signals import end_with_parent

T = TypeVar('T')
Task = Callable[[], T]
# Errors that are one sentence, and come back from clusters as they are.
TOLD = (UserError, OSError, ImportError)


def run_tasks(tasks: Mapping[str, Task[T]], jobs: int, where: str = 'processes', logs: Path = Path()
              ) -> Iterator[tuple[str, T]]:
    """Runs `jobs` tasks at a time, and yields name and result of each task after it has ended.

    If one raises an error, or this process ends, the others end at once. One that a signal ends begins again. Tasks and
    their results must be picklable. On a cluster, all machines need the same files at the same paths.

    Args:
        tasks: The tasks, by name.
        jobs: The number of tasks at a time.
        where: 'processes' of this machine, 'slurm', or 'local' for submitit's own processes.
        logs: The folder for the logs of submitit.
    """
    # Jobs, and this process's children, import the modules that this process imports.
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, sys.path))
    if not tasks:
        return
    waiting, running = dict(tasks), dict[str, Any]()
    with _processes(min(jobs, len(tasks))) if where == 'processes' else _submitit(where, logs) as submit:
        while waiting or running:
            for name in [*waiting][:jobs - len(running)]:
                running[name] = submit(_attempt, waiting.pop(name))
            for name in [name for name, job in running.items() if job.done()]:
                result = running.pop(name).result()
                if isinstance(result, TOLD):
                    raise result
                if isinstance(result, SystemExit):  # after a signal, such as when a cluster wants the machine back
                    waiting[name] = tasks[name]
                else:
                    yield name, result
            time.sleep(0.1 if where == 'processes' else 1)  # clusters are asked through files, or by the network


def _attempt(task: Task[T]) -> T | BaseException:
    try:
        return task()
    except (*TOLD, SystemExit) as error:
        return error  # clusters would put a traceback into its message


@contextmanager
def _processes(jobs: int) -> Iterator[Callable[..., Any]]:
    # Torch's threads do not survive a fork.
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context('spawn'), end_with_parent)
    try:
        # All processes start now: until its next result, the pool does not notice that a later one died.
        wait([pool.submit(os.getpid) for _ in range(jobs)])
        yield pool.submit
    except BaseException as error:
        for process in multiprocessing.active_children():
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise UserError('a process died, possibly for lack of memory: run again with fewer --jobs; finished tasks '
                            'are kept.') from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _submitit(cluster: str, logs: Path) -> Iterator[Callable[..., Any]]:
    try:
        import submitit
    except ImportError as error:
        raise ImportError(f'--executor {cluster} needs submitit ({first_line(error)}): pip install submitit.') from None

    class Resumable(submitit.helpers.Checkpointable):
        """Goes back into the queue when Slurm ends it, and goes on."""

        def __call__(self, function: Callable[..., T], *args: Any) -> T:
            return function(*args)

    executor, submitted = submitit.AutoExecutor(logs, cluster), []

    def submit(*args: Any) -> Any:
        submitted.append(executor.submit(Resumable(), *args))
        return submitted[-1]

    try:
        yield submit
    finally:
        for job in submitted:
            if not job.done():
                job.cancel(check=False)  # else an error of scancel would hide the error of the task
