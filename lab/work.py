"""Runs tasks several at a time, in processes."""
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event
from typing import TypeVar

from rich.progress import track

from openmmlab_runs.errors import UserError
from openmmlab_runs.processes import end_with_parent

T = TypeVar('T')
Task = Callable[[], T]


def run_in_processes(title: str, tasks: Mapping[str, Task[T]], jobs: int,
                     start: Callable[[], object] | None = None) -> Iterator[tuple[str, T]]:
    """Runs several tasks at a time. All of them end at once if one raises an error, or if this process ends.

    Tasks and their results must be picklable. `start` is called at the start of each of the `jobs` processes, which run
    one task after another.

    Yields:
        Name and result of each task after it has ended.
    """
    context = multiprocessing.get_context('spawn')  # torch's threads do not survive a fork
    stop = context.Event()
    pool = ProcessPoolExecutor(jobs, context, _start, (stop, start))
    names = {pool.submit(task): name for name, task in tasks.items()}
    try:
        for future in track(as_completed(names), title, len(names)):
            yield names[future], future.result()
    except BrokenProcessPool as error:
        raise UserError('a process died, possibly for lack of memory: run again with fewer --jobs; finished tasks '
                        'are kept.') from error
    finally:
        if not all(future.done() for future in names):
            stop.set()
        pool.shutdown(cancel_futures=True)


def _start(stop: Event, start: Callable[[], object] | None) -> None:
    end_with_parent()
    threading.Thread(target=_exit_on, args=(stop,), daemon=True).start()
    if start:
        start()


def _exit_on(stop: Event) -> None:
    stop.wait()
    os._exit(1)
