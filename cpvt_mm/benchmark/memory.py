"""Peak memory of a call, in a process of its own.

What is counted is what the model holds between two calls (weights, buffers, what the optimizer keeps) and what a second
call adds at its peak: activations, gradients, and the workspace of kernels. Not counted is what a process has anyway
(the libraries, the images, and for a compiled model the compiler), nor what the allocator keeps of memory that was
freed: that differs from run to run, on the CPU by a tenth of all.
"""
import ctypes
import gc
import multiprocessing
import os
import re
import resource
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from cpvt_mm.errors import first_line
from cpvt_mm.processes import end_with_parent

from .candidates import Candidate, CannotMeasure
from .settings import Setting
from .steps import Step, Subject
from .timing import CLOCKS

OUT_OF_MEMORY = 'out of memory'
# The last is what oneDNN says.
WANTS_MEMORY = re.compile(r"out of memory|can't allocate memory|bad_alloc|could not (create|execute) a primitive")
# glibc's number for the size from which it takes an allocation from the system, and gives it back when it is freed.
M_MMAP_THRESHOLD = -3
# Of the memory that is free, the part that a process may take: the rest is for others, and for its own libraries.
SHARE = 0.9


class Usage(NamedTuple):
    """Of one candidate.

    Attributes:
        bytes: The peak; None where the system does not tell.
        first_call: Seconds that the first call took, a compiler's included.
    """
    bytes: int | None
    first_call: float


def measure_alone(subject: Subject, candidate: Candidate, setting: Setting, limit: int | None = None) -> Usage:
    """Measures a candidate in a new process, which ends with this one.

    Args:
        subject: What it is measured as.
        candidate: The candidate.
        setting: Under what.
        limit: Bytes that it may take on the CPU. Defaults to None: most of what is free.

    Raises:
        CannotMeasure: If it wants more memory, or cannot run.
    """
    context = multiprocessing.get_context('spawn')  # torch's threads do not survive a fork
    with ProcessPoolExecutor(1, context, _start) as pool:
        try:
            return pool.submit(_measure, subject, candidate, setting, limit).result()
        except BrokenProcessPool as error:
            raise CannotMeasure(f'{OUT_OF_MEMORY}, or another reason for which its process was killed') from error


def _start() -> None:
    end_with_parent()
    for stream in (1, 2):  # also of what is not Python's
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    warnings.simplefilter('ignore')
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)  # its default, which else it would raise


def _measure(subject: Subject, candidate: Candidate, setting: Setting, limit: int | None) -> Usage:
    torch.set_num_threads(setting.threads)
    try:
        if subject.device == 'cpu':
            _limit(most_bytes() if limit is None else limit)
        step = subject.step(candidate, setting)
        first_call = CLOCKS[subject.device](step.run)
        return Usage((_peak_on_gpu if subject.device == 'cuda' else _peak)(step), first_call)
    except CannotMeasure:
        raise
    except Exception as error:  # whatever a model raises
        if isinstance(error, MemoryError) or WANTS_MEMORY.search(str(error)):
            raise CannotMeasure(OUT_OF_MEMORY) from None
        # A new one: not all can be sent to another process.
        raise CannotMeasure(f'{candidate} does not run ({type(error).__name__}: {first_line(error)}).') from None


def _peak(step: Step) -> int | None:
    if not Path('/proc/self/status').exists():
        return None
    step.model.zero_grad(set_to_none=True)
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # of what is smaller
    before = _status('VmRSS')
    with suppress(OSError):  # where it cannot be reset, the peak is that of both calls
        Path('/proc/self/clear_refs').write_text('5')
    step.run()
    return step.held_bytes() + _status('VmHWM') - before


def _peak_on_gpu(step: Step) -> int:
    step.model.zero_grad(set_to_none=True)
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step.run()
    torch.cuda.synchronize()
    return step.held_bytes() + torch.cuda.max_memory_allocated() - before


def _status(name: str) -> int:
    """A number of bytes that Linux knows of this process."""
    return 1024 * int(re.search(rf'{name}:\s*(\d+) kB', Path('/proc/self/status').read_text())[1])


def most_bytes() -> int:
    """What a process may take: most of what can be had without swapping, also within the limit of a container."""
    found = re.search(r'MemAvailable:\s*(\d+) kB', Path('/proc/meminfo').read_text())
    free = 1024 * int(found[1])
    with suppress(OSError, ValueError):  # there need be none
        group = Path('/sys/fs/cgroup')
        free = min(free, int((group / 'memory.max').read_text()) - int((group / 'memory.current').read_text()))
    return int(SHARE * free)


def _limit(number: int) -> None:
    """Has an allocation of more bytes than that fail, where the system can; else it may kill another process."""
    with suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (_status('VmData') + number, hard))
