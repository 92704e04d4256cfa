"""Processes that end when the one that started them does."""
import multiprocessing
import os
import signal
import threading


def end_with_parent() -> None:
    """Has this process, which another one has started, end at once when that one does, or is interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, 'not started by multiprocessing'
    parent.join()
    os._exit(1)
