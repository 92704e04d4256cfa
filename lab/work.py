"""Runs tasks one after another, or several at a time in processes, with progress bars."""
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.managers import SyncManager
from multiprocessing.synchronize import Event
from typing import TypeVar

from mmengine.hooks import Hook
from mmengine.runner import Runner
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from openmmlab_runs.errors import UserError
from openmmlab_runs.processes import end_with_parent

T = TypeVar('T')
# A task calls it with its current activity, the number of completed steps, and the number of all steps.
Report = Callable[[str, int, int], None]
Task = Callable[[Report], T]


class ReportIterations(Hook):
    """Reports the number of completed iterations and of all iterations, after each iteration of training or testing.

    Args:
        report: Called after every iteration.
        what: The reported activity, such as 'training'.
    """

    def __init__(self, report: Report, what: str) -> None:
        self.report = report
        self.what = what

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: object = None,
                         outputs: object = None) -> None:
        self.report(self.what, runner.iter + 1, runner.max_iters)

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: object = None,
                        outputs: object = None) -> None:
        self.report(self.what, batch_idx + 1, len(runner.test_dataloader))


def run_all(title: str, tasks: Mapping[str, Task[T]]) -> Iterator[tuple[str, T]]:
    """Runs tasks one after another in this process.

    Args:
        title: Title of the progress bar for all tasks.
        tasks: Tasks by name; a running task has its own bar with its name.

    Yields:
        Name and result of each task after it has ended.
    """
    with _Bars(title, len(tasks)) as bars:
        for name, task in tasks.items():
            result = task(partial(bars.show, name))
            bars.end(name)
            yield name, result


def run_in_processes(title: str, tasks: Mapping[str, Task[T]], jobs: int,
                     start: Callable[[], object] | None = None) -> Iterator[tuple[str, T]]:
    """Runs several tasks at a time. All of them end at once if one raises an error, or if this process ends.

    Args:
        title: Title of the progress bar for all tasks.
        tasks: Tasks by name. Tasks and their results must be picklable.
        jobs: Number of processes. Each runs one task after another.
        start: Called at the start of each process. Defaults to None: nothing.

    Yields:
        Name and result of each task after it has ended.

    Raises:
        UserError: If a process dies.
        Exception: Any error of a task.
    """
    context = multiprocessing.get_context('spawn')  # torch's threads do not survive a fork
    stop = context.Event()
    pool = ProcessPoolExecutor(jobs, context, _start, (stop, start))
    manager = SyncManager(ctx=context)
    manager.start(end_with_parent)
    with manager, _Bars(title, len(tasks)) as bars:
        states = manager.dict()
        names = {pool.submit(_run, task, name, states): name for name, task in tasks.items()}
        running = set(names)
        try:
            while running:
                ended, running = wait(running, timeout=0.5, return_when=FIRST_COMPLETED)
                for name, state in states.items():
                    bars.show(name, *state)
                for future in ended:
                    result = future.result()
                    bars.end(names[future])
                    yield names[future], result
        except BrokenProcessPool as error:
            raise UserError('a process died, possibly for lack of memory: run again with fewer --jobs; finished tasks '
                            'are kept.') from error
        finally:
            if running:
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


def _run(task: Task[T], name: str, states: MutableMapping[str, tuple[str, int, int]]) -> T:
    def report(what: str, done: int, total: int) -> None:
        states[name] = what, done, total

    try:
        return task(report)
    finally:
        states.pop(name, None)


class _Bars(Progress):
    """A progress bar for all tasks, and one for each running task that reports."""

    def __init__(self, title: str, total: int) -> None:
        super().__init__(TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._all = self.add_task(title, total=total)
        self._own: dict[str, TaskID] = {}

    def show(self, name: str, what: str, done: int, total: int) -> None:
        if name not in self._own:
            self._own[name] = self.add_task(name)
        self.update(self._own[name], description=f'{name}: {what}', completed=done, total=total)

    def end(self, name: str) -> None:
        if name in self._own:
            self.remove_task(self._own.pop(name))
        self.advance(self._all)
