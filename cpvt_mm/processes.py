"""Processes that end when the one that started them does."""
import multiprocessing
import os
import signal
import threading


def end_with_parent(on_interrupt: signal.Handlers = signal.SIG_IGN) -> None:
    """Has this process, which another one has started, end at once when that one does.

    Args:
        on_interrupt: What SIGINT does here. Ctrl-C reaches all processes of a terminal; the parent ends then, and with
            it this one. Defaults to nothing.
    """
    signal.signal(signal.SIGINT, on_interrupt)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, 'not started by multiprocessing'
    parent.join()
    os._exit(1)
