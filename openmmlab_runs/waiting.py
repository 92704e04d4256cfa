"""Waits with an end: an action on another machine, with a line that says what is waited for."""
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from .errors import show

T = TypeVar('T')
WORD = 10.  # seconds after which a line says what is waited for
ASKING = 10.  # seconds to find out how long it may take


class TooLong(Exception):
    """An action did not end in time. Nobody can stop it; it may still end."""


def within(what: str, action: Callable[[], T], seconds: float, more: Callable[[], float] = lambda: 0.) -> T:
    """Returns what an action returns, or raises what it raises, if it ends in so many seconds, and else TooLong.

    The action runs in a thread of its own, which does not keep the process alive. After `WORD` seconds, a line says
    `what` is waited for. When the time is over, `more` has `ASKING` seconds to tell further seconds.
    """
    begun, job = time.monotonic(), _Job(action)
    if not job.ended(min(WORD, seconds)):
        show(f'waiting for {what} ...')
        if not job.ended(begun + seconds - time.monotonic()):
            asked = _Job(more)
            seconds += asked.result if asked.ended(ASKING) and asked.error is None else 0
            if not job.ended(begun + seconds - time.monotonic()):
                raise TooLong(f'no answer in {seconds:.0f} seconds')
    if job.error is not None:
        raise job.error
    return job.result


class _Job:
    """An action that runs in a thread."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._done = threading.Event()
        self._action = action
        # Threads of a pool would be waited for at the end of the process, and are lost in a fork.
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.result = self._action()
        except BaseException as error:  # raised again by who waits
            self.error = error
        self._done.set()

    def ended(self, seconds: float) -> bool:
        """Waits for the end, at most so many seconds; returns whether it has come."""
        return self._done.wait(max(seconds, 0))
