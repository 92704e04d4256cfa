"""Measures a group of candidates: the memory of each alone, and the times of all in turns."""
import os
import platform
import random
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from .candidates import Candidate, CannotMeasure
from .memory import measure_alone, most_bytes
from .results import Row
from .steps import DTYPES, Setting, Step, Subject, seconds

Call = Callable[[], object]
COLUMNS = ('candidate', 'mode', 'height', 'width', 'batch_size', 'dtype', 'threads', 'device', 'min_s', 'median_s',
           'memory_mb', 'gflops', 'gemm_gflops_per_s', 'share_of_peak', 'max_abs_diff', 'compile_s', 'failure')
CACHE = 'TORCHINDUCTOR_CACHE_DIR'
# Sides of the matrices whose products show the peak speed of the machine. There are several, because the largest one
# is not the fastest on every machine.
SIDES = {'cpu': (1024, 2048), 'cuda': (4096, 8192)}


def measure_group(subject: Subject, candidates: Sequence[Candidate], setting: Setting, rounds: int, warmup: int
                  ) -> dict[str, Row]:
    """Measures candidates under one setting: the memory of each in a separate process, then the times in turns.

    Args:
        subject: Builds the candidates, which are without duplicates.
        candidates: All candidates of the group.
        setting: The conditions, the same for all.
        rounds: Number of timed calls of each candidate; at least 1.
        warmup: Number of untimed calls before them; at least 1.

    Returns:
        A row for each candidate, by its name, with all of COLUMNS; `failure` is None, or why values are missing.
    """
    torch.set_num_threads(setting.threads)
    torch.cuda.empty_cache()  # frees the memory of earlier groups, which other processes need
    steps: dict[str, Step] = {}
    rows: dict[str, Row] = {str(candidate): {
        **dict.fromkeys(COLUMNS), 'candidate': str(candidate), **asdict(setting), 'device': subject.device}
        for candidate in candidates}
    limit = most_bytes() if subject.device == 'cpu' else None  # once, as earlier candidates stay in memory
    with _cold_compiler(any(candidate.shapes for candidate in candidates)), setting.precision():
        for candidate in candidates:
            row = rows[str(candidate)]
            try:
                # The candidate is built here first, so that errors show early.
                step = subject.step(candidate, setting)
                if step.has_torch_memory:
                    usage = measure_alone(subject, candidate, setting, limit)
                    row.update(memory_mb=usage.bytes and usage.bytes / 1e6,
                               compile_s=usage.first_call if candidate.shapes else None)
                steps[str(candidate)] = step
            except CannotMeasure as error:
                row['failure'] = str(error)
        for name, step in steps.items():
            rows[name]['max_abs_diff'] = subject.max_abs_diff(step, setting)
        products = matrix_products(subject.device, DTYPES[setting.dtype])
        times = interleave({**{name: step.run for name, step in steps.items()},
                            **{name: call for name, (_, call) in products.items()}}, rounds, warmup)
    speed = max(operations / min(times[name]) for name, (operations, _) in products.items())
    for candidate in candidates:
        if (name := str(candidate)) in steps:
            flops, fastest = subject.flops(candidate, setting), min(times[name])
            rows[name].update(
                min_s=fastest, median_s=statistics.median(times[name]), gflops=flops and flops / 1e9,
                gemm_gflops_per_s=speed / 1e9, share_of_peak=flops and flops / fastest / speed)
    return rows


@contextmanager
def _cold_compiler(is_used: bool) -> Iterator[None]:
    """Empties the caches of torch.compile in memory and on disk; the processes in the block share a new one."""
    if not is_used:
        yield
        return
    torch.compiler.reset()
    before = os.environ.get(CACHE)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE] = folder
        try:
            yield
        finally:
            del os.environ[CACHE]
            if before is not None:
                os.environ[CACHE] = before


def interleave(calls: Mapping[str, Call], rounds: int, warmup: int) -> dict[str, list[float]]:
    """Times each call once per round, in a random order, so that noise affects all alike; returns the seconds of each.

    The first `warmup` rounds are not timed.
    """
    order = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(-warmup, rounds):
        for name in order.sample(list(calls), len(calls)):
            taken = seconds(calls[name])
            if index >= 0:
                found[name].append(taken)
    return found


def matrix_products(device: str, dtype: torch.dtype) -> dict[str, tuple[int, Call]]:
    """Makes square matrix products, as a reference for the speed of models, each with its number of operations.

    Each is made as a matrix product and as a convolution, which use different kernels.
    """
    found: dict[str, tuple[int, Call]] = {}
    for side in SIDES[device]:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        found[f'product of {side} x {side}'] = 2 * side**3, partial(torch.mm, b, a)
        image, weight = a[None, :, :, None], b[:, :, None, None]  # channels x pixels, and a kernel of one pixel
        found[f'convolution of {side} x {side}'] = 2 * side**3, partial(F.conv2d, image, weight)
    return found


def describe_machine(device: str) -> dict[str, str]:
    """Returns the name of the processor or GPU and the version of torch."""
    return dict(machine=torch.cuda.get_device_name() if device == 'cuda' else f'{_cpu()}, {os.cpu_count()} cores',
                torch=torch.__version__)


def _cpu() -> str:
    path = Path('/proc/cpuinfo')
    found = re.search(r'model name\s*:\s*(.+)', path.read_text()) if path.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
