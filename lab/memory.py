"""Measures the peak memory of a call, on a CPU in a separate process.

The peak includes the memory of the model between two calls: weights, buffers and optimizer state. It also includes the
memory that a second call adds: activations, gradients, and the workspace of kernels. It excludes the memory of the
process itself: libraries, images, and the compiler of a compiled model. It also excludes freed memory in the
allocator's cache, which differs between runs: on the CPU by a tenth of the total.
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

from openmmlab_runs.errors import first_line
from openmmlab_runs.processes import end_with_parent

from .candidates import Candidate, CannotMeasure
from .steps import Setting, Step, Subject, seconds

OUT_OF_MEMORY = 'out of memory'
# The last alternative is the message of oneDNN.
WANTS_MEMORY = re.compile(r"out of memory|can't allocate memory|bad_alloc|could not (create|execute) a primitive")
# glibc's parameter number for the size from which allocations use mmap, and return to the system when freed.
M_MMAP_THRESHOLD = -3
# Share of the free memory that a process may use; the rest is for other processes and for its own libraries.
SHARE = 0.9


class Usage(NamedTuple):
    """The peak of memory in bytes, and the seconds of the first call, with compilation; None if not measured."""
    bytes: int | None
    first_call: float | None


def measure_alone(subject: Subject, candidate: Candidate, setting: Setting, limit: int | None = None) -> Usage:
    """Measures a candidate in a new process, which ends with this one.

    On a GPU, torch's allocator knows the memory of each call: a new process is only needed to compile anew. On the CPU
    a candidate may have at most `limit` bytes, by default most of the free memory.
    """
    if subject.device == 'cuda' and not candidate.shapes:
        return _measure(subject, candidate, setting, limit)
    context = multiprocessing.get_context('spawn')  # torch's threads do not survive a fork
    with ProcessPoolExecutor(1, context, _start) as pool:
        try:
            return pool.submit(_measure, subject, candidate, setting, limit).result()
        except BrokenProcessPool as error:
            raise CannotMeasure(f'{OUT_OF_MEMORY}, or another reason for which its process was killed') from error


def _start() -> None:
    end_with_parent(signal.SIG_DFL)
    for stream in (1, 2):  # also silences output of C and C++ code
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    warnings.simplefilter('ignore')
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)  # fixes the default, which glibc would raise dynamically


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
    except Exception as error:  # models can raise any error
        if isinstance(error, MemoryError) or WANTS_MEMORY.search(str(error)):
            raise CannotMeasure(OUT_OF_MEMORY) from None
        # A new exception, because not all can be pickled to another process.
        raise CannotMeasure(f'{candidate} does not run ({type(error).__name__}: {first_line(error)}).') from None


def _peak(step: Step) -> int | None:
    if not Path('/proc/self/status').exists():
        return None
    step.model.zero_grad(set_to_none=True)
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # returns freed small allocations to the system
    before = _status('VmRSS')
    with suppress(OSError):  # if the peak cannot be reset, it is the peak of both calls
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
    """Reads a field of /proc/self/status of this process, in bytes."""
    return _bytes(Path('/proc/self/status'), name)


def _bytes(path: Path, name: str) -> int:
    fields = dict(line.partition(':')[::2] for line in path.read_text().splitlines())
    return 1024 * int(fields[name].split()[0])  # '123 kB'


def most_bytes() -> int | None:
    """Returns most of the memory that is free without swapping, in the limit of a container; None if it is not known.
    """
    with suppress(OSError):
        free = _bytes(Path('/proc/meminfo'), 'MemAvailable')
        with suppress(OSError, ValueError):  # not in a container, or without a limit
            group = Path('/sys/fs/cgroup')
            free = min(free, int((group / 'memory.max').read_text()) - int((group / 'memory.current').read_text()))
        return int(SHARE * free)
    return None


def _limit(number: int | None) -> None:
    """Limits the memory of this process, if the system can; else it may kill another process when memory runs out."""
    with suppress(OSError, ValueError):
        if number is not None:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            resource.setrlimit(resource.RLIMIT_DATA, (_status('VmData') + number, hard))
