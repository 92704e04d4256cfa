"""Ends child processes when their parent process ends."""
import multiprocessing
import os
import signal
import threading


def end_with_parent(on_interrupt: signal.Handlers = signal.SIG_IGN) -> None:
    """Makes this child process end at once when its parent process ends.

    Args:
        on_interrupt: The handler of SIGINT in this process. Ctrl-C reaches all processes of a terminal; the parent then
            ends, and this process with it. Defaults to ignoring SIGINT.
    """
    signal.signal(signal.SIGINT, on_interrupt)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, 'not started by multiprocessing'
    parent.join()
    os._exit(1)
