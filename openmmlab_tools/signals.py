"""Ends child processes with their parent process, and names the signals that ask a process to end."""
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from openmmlab_tools.registry import FUNCTIONS

# Slurm and Kubernetes send SIGTERM before they kill; Slurm's --signal=USR1@60 comes earlier. See `SaveOnSignalHook`.
ASK_TO_END = tuple(getattr(signal, name) for name in ('SIGTERM', 'SIGUSR1') if hasattr(signal, name))  # not on Windows


def end_with_parent(on_interrupt: signal.Handlers = signal.SIG_IGN) -> None:
    """Makes this process end at once when its parent ends. `on_interrupt` handles SIGINT, which reaches both."""
    signal.signal(signal.SIGINT, on_interrupt)
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, 'not started by multiprocessing'
    parent.join()
    os._exit(1)


@FUNCTIONS.register_module()
def end_worker_with_parent(worker: int) -> None:
    """Makes a data loader worker end with the process that started it. Use it as `worker_init_fn` of a data loader.

    The worker ignores SIGUSR1, SIGUSR2 and SIGTERM. Slurm and torchrun send these signals to all processes of a job,
    but the main process needs its workers until it has saved a checkpoint; its own SIGTERM then ends them. Torch has
    seeded the worker before this call. Threads that started before this call do not ignore SIGTERM: threads of torch,
    if the main process called `torch.set_num_threads` (set OMP_NUM_THREADS instead), and threads of NumPy in spawned
    workers.
    """
    for name in ('SIGUSR1', 'SIGUSR2'):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if hasattr(signal, 'sigwaitinfo'):  # not on macOS and Windows
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # also in threads that begin later
        threading.Thread(target=_wait_for_sigterm_of, args=(os.getppid(),), daemon=True).start()
    sys.excepthook = lambda *_: None  # of the thread that shares tensors, when Ctrl-C ends the main process meanwhile
    end_with_parent()


def _wait_for_sigterm_of(parent: int) -> None:
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != parent:
        pass
    os._exit(0)


@contextmanager
def handlers_restored() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in ASK_TO_END}
    try:
        yield
    finally:
        for number, handler in former.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)
