"""Waits with an end: an action on another machine, with a line that says what is waited for."""
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from .errors import show

T = TypeVar('T')
WORD = 10.  # seconds after which a line says what is waited for
ASKING = 10.  # seconds to find out how long it may take


class TooLong(Exception):
    """An action did not end in time. Nobody can stop it; it may still end."""


def within(awaited: str, action: Callable[[], T], seconds: float, more: Callable[[], float] = lambda: 0.) -> T:
    """Returns or raises what an action does, if it ends in so many seconds, and else raises TooLong. After `WORD`
    seconds, a line says `what` is waited for. In the end, `more` has `ASKING` seconds to tell further seconds.
    """
    begun, job = time.monotonic(), _started(action)
    if not _ended(job, min(WORD, seconds)):
        show(f'waiting for {awaited} ...')
        if not _ended(job, begun + seconds - time.monotonic()):
            asked = _started(more)
            seconds += asked.result() if _ended(asked, ASKING) and asked.exception() is None else 0
            if not _ended(job, begun + seconds - time.monotonic()):
                raise TooLong(f'no answer in {seconds:.0f} seconds')
    return job.result()


def _started(action: Callable[[], T]) -> Future[T]:
    """Runs an action in a thread. A pool's would be waited for at the end of the process, and lost in a fork."""
    job: Future[T] = Future()

    def run() -> None:
        try:
            job.set_result(action())
        except BaseException as error:  # raised again by who waits
            job.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return job


def _ended(job: Future[Any], seconds: float) -> bool:
    return bool(wait([job], max(seconds, 0)).done)
