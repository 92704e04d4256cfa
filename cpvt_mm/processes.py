"""Processes that end when the one that started them does."""
import multiprocessing
import os
import signal
import threading


def end_with_parent() -> None:
    """Has this process end at once when its parent does, or is interrupted; for the start of a process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
