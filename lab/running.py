"""Measures a group of candidates: the memory of each alone, and the times of all in turns."""
import ctypes
import gc
import multiprocessing
import os
import platform
import random
import re
import signal
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch

from lab.backbones import Backbones, Setting, Step, allow_tf32, seconds
from lab.candidates import Candidate, CannotMeasure
from lab.results import Row
from openmmlab_tools.errors import explain
from openmmlab_tools.signals import end_with_parent

OUT_OF_MEMORY = 'out of memory'
# torch has no type for this error on a CPU; the last two are of oneDNN.
WANTS_MEMORY = ("can't allocate memory", 'bad_alloc', 'could not create a primitive', 'could not execute a primitive')
# glibc's parameter number for the size from which allocations use mmap, and return to the system when freed.
M_MMAP_THRESHOLD = -3
Call = Callable[[], object]
COLUMNS = ('candidate', 'mode', 'height', 'width', 'batch_size', 'sizes', 'dtype', 'threads', 'device', 'min_s',
           'median_s', 'memory_mb', 'gflops', 'max_abs_diff', 'compile_s', 'failure')


class Usage(NamedTuple):
    """The peak of memory in bytes, and the seconds of the first call, with compilation; None if not measured."""
    bytes: int | None
    first_call: float | None


def measure_alone(subject: Backbones, candidate: Candidate, setting: Setting) -> Usage:
    """Measures a candidate in a new process, which ends with this one.

    On a GPU, torch's allocator knows the memory of each call: a new process is only needed to compile anew.
    """
    if subject.device == 'cuda' and not candidate.shapes:
        return _measure(subject, candidate, setting)
    context = multiprocessing.get_context('spawn')  # torch's threads do not survive a fork
    with ProcessPoolExecutor(1, context, _start) as pool:
        try:
            return pool.submit(_measure, subject, candidate, setting).result()
        except BrokenProcessPool as error:
            raise CannotMeasure(f'{OUT_OF_MEMORY}, or another reason for which its process was killed') from error


def _start() -> None:
    end_with_parent(signal.SIG_DFL)
    for stream in (1, 2):  # what Python, C and C++ print
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    warnings.simplefilter('ignore')
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17)  # fixes the default, which glibc would raise dynamically


def _measure(subject: Backbones, candidate: Candidate, setting: Setting) -> Usage:
    torch.set_num_threads(setting.threads)
    try:
        step = subject.step(candidate, setting)
        with allow_tf32(setting.dtype == 'tf32'):
            first_call = seconds(step.run)
            return Usage(_peak(step, subject.device), first_call)
    except CannotMeasure:
        raise
    except Exception as error:  # models can raise any error
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(text in str(error) for text in WANTS_MEMORY):
            raise CannotMeasure(OUT_OF_MEMORY) from None
        # A new exception, because not all can be pickled to another process.
        raise CannotMeasure(f'{candidate} does not run ({explain(error)}).') from None


def _peak(step: Step, device: str) -> int | None:
    """Returns the largest memory of a call and of what the model holds, in bytes; None where it cannot be measured."""
    step.model.zero_grad(set_to_none=True)
    gc.collect()
    if device == 'cuda':
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step.run()
        torch.cuda.synchronize()
        return step.held_bytes() + torch.cuda.max_memory_allocated() - before
    if not Path('/proc/self/status').exists():
        return None
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)  # returns freed small allocations to the system
    before = _status('VmRSS')
    with suppress(OSError):  # if the peak cannot be reset, it is the peak of both calls
        Path('/proc/self/clear_refs').write_text('5')
    step.run()
    return step.held_bytes() + _status('VmHWM') - before


def _status(name: str) -> int:
    """Reads a field of /proc/self/status of this process, in bytes."""
    fields = dict(line.partition(':')[::2] for line in Path('/proc/self/status').read_text().splitlines())
    return 1024 * int(fields[name].split()[0])  # '123 kB'


def measure_group(subject: Backbones, candidates: Sequence[Candidate], setting: Setting, rounds: int, warmup: int
                  ) -> dict[str, Row]:
    """Measures candidates under one setting: the memory of each in a separate process, then the times in turns.

    Each has at least one timed and one untimed call. Returns a row for each candidate, by its name, with all of
    COLUMNS; `failure` is None, or why values are missing.
    """
    torch.set_num_threads(setting.threads)
    torch.cuda.empty_cache()  # frees the memory of earlier groups, which other processes need
    steps: dict[str, Step] = {}
    rows: dict[str, Row] = {}
    is_compiled = any(candidate.shapes for candidate in candidates)
    with _cold_compiler() if is_compiled else nullcontext(), allow_tf32(setting.dtype == 'tf32'):
        for candidate in candidates:
            row = rows[str(candidate)] = {
                **dict.fromkeys(COLUMNS), 'candidate': str(candidate), **asdict(setting),
                'sizes': setting.names_of_sizes, 'device': subject.device}
            try:
                # The candidate is built here first, so that errors show early.
                step = subject.step(candidate, setting)
                usage = measure_alone(subject, candidate, setting)
            except CannotMeasure as error:
                row['failure'] = str(error)
                continue
            flops = subject.flops(candidate, setting)
            row.update(memory_mb=usage.bytes and usage.bytes / 1e6, gflops=flops and flops / 1e9,
                       compile_s=usage.first_call if candidate.shapes else None)
            steps[str(candidate)] = step
        for name, step in steps.items():
            rows[name]['max_abs_diff'] = subject.max_abs_diff(step, setting)
        times = interleave({name: step.run for name, step in steps.items()}, rounds, warmup)
    for name, taken in times.items():
        rows[name].update(min_s=min(taken), median_s=statistics.median(taken))
    return rows


@contextmanager
def _cold_compiler() -> Iterator[None]:
    """Empties the caches of torch.compile in memory and on disk; the processes in the block share a new one."""
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        yield


def interleave(calls: Mapping[str, Call], rounds: int, warmup: int) -> dict[str, list[float]]:
    """Times each call once per round, in a random order, so that noise affects all alike; returns the seconds of each.

    The first `warmup` rounds are not timed.
    """
    order = random.Random(0)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(-warmup, rounds):
        for name in order.sample(list(calls), len(calls)):
            taken = seconds(calls[name])
            if index >= 0:
                times[name].append(taken)
    return times


def describe_machine(device: str) -> dict[str, str]:
    """Returns the name of the processor or GPU and the version of torch."""
    return dict(machine=torch.cuda.get_device_name() if device == 'cuda' else f'{_cpu()}, {os.cpu_count()} cores',
                torch=torch.__version__)


def _cpu() -> str:
    path = Path('/proc/cpuinfo')
    match = re.search(r'model name\s*:\s*(.+)', path.read_text()) if path.exists() else None
    return match[1] if match else platform.processor() or platform.machine()
