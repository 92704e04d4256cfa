"""Peak memory of a call, in a process of its own.

The peak counts what the model holds between two calls (weights, buffers, the optimizer's state) and what a second call
adds: activations, gradients, and the workspace of kernels. It does not count what a process has anyway (the libraries,
the images, and for a compiled model the compiler), nor freed memory that the allocator keeps: that differs from run to
run, on the CPU by a tenth of all.
"""
import ctypes
import gc
import multiprocessing
import os
import re
import resource
import signal
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
from .timing import seconds

OUT_OF_MEMORY = 'out of memory'
# The last is what oneDNN says.
WANTS_MEMORY = re.compile(r"out of memory|can't allocate memory|bad_alloc|could not (create|execute) a primitive")
# glibc's number for the size from which it takes an allocation from the system, and gives it back when it is freed.
M_MMAP_THRESHOLD = -3
# Of the memory that is free, the part that a process may take: the rest is for others, and for its own libraries.
SHARE = 0.9


class Usage(NamedTuple):
    """Memory of one candidate.

    Attributes:
        bytes: The peak; None where it cannot be known.
        first_call: Seconds that the first call took, a compiler's included; None where none was made.
    """
    bytes: int | None
    first_call: float | None


def measure_alone(subject: Subject, candidate: Candidate, setting: Setting, limit: int | None = None) -> Usage:
    """Measures a candidate in a new process, which ends with this one.

    Args:
        subject: Builds what is measured.
        candidate: The candidate.
        setting: The conditions.
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
    end_with_parent(signal.SIG_DFL)
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
        with setting.precision():
            first_call = seconds(step.run)
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
    """Reads a number of bytes that Linux knows of this process."""
    return _bytes(Path('/proc/self/status'), name)


def _bytes(path: Path, name: str) -> int:
    fields = dict(line.partition(':')[::2] for line in path.read_text().splitlines())
    return 1024 * int(fields[name].split()[0])  # '123 kB'


def most_bytes() -> int | None:
    """Returns what a process may take: most of what is free without swapping, also within the limit of a container.

    None where the system does not tell.
    """
    with suppress(OSError):
        free = _bytes(Path('/proc/meminfo'), 'MemAvailable')
        with suppress(OSError, ValueError):  # there need be no container
            group = Path('/sys/fs/cgroup')
            free = min(free, int((group / 'memory.max').read_text()) - int((group / 'memory.current').read_text()))
        return int(SHARE * free)
    return None


def _limit(number: int | None) -> None:
    """Has an allocation of more bytes than that fail, where the system can; else it may kill another process."""
    with suppress(OSError, ValueError):
        if number is not None:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (_status('VmData') + number, hard))
