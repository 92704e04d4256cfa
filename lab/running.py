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
from unittest.mock import patch

import torch
import torch.nn.functional as F

from .candidates import Candidate, CannotMeasure
from .memory import Usage, measure_alone, most_bytes
from .results import Row
from .steps import DTYPES, FusedAttention, Setting, Step, Subject, seconds
from .work import Report

Call = Callable[[], object]
COLUMNS = ('candidate', 'mode', 'height', 'width', 'batch_size', 'dtype', 'threads', 'device', 'min_s', 'median_s',
           'memory_mb', 'gflops', 'gemm_gflops_per_s', 'share_of_peak', 'max_abs_diff', 'compile_s', 'fused', 'failure')
# Sides of the matrices whose products show the peak speed of the machine. There are several, because the largest one
# is not the fastest on every machine.
SIDES = {'cpu': (1024, 2048), 'cuda': (4096, 8192)}


def measure_group(subject: Subject, candidates: Sequence[Candidate], setting: Setting, rounds: int, warmup: int,
                  report: Report) -> dict[str, Row]:
    """Measures candidates under one setting: the memory of each in a separate process, then the times in turns.

    Args:
        subject: Builds the candidates.
        candidates: All candidates of the group, without duplicates.
        setting: The conditions, the same for all.
        rounds: Number of timed calls of each candidate; at least 1.
        warmup: Number of untimed calls before them; at least 1.
        report: Called for each candidate and each round.

    Returns:
        A row for each candidate, by its name, with all of COLUMNS; `failure` is None, or the reason for missing values.
    """
    torch.set_num_threads(setting.threads)
    torch.cuda.empty_cache()  # frees the memory of earlier groups, which other processes need
    measured: dict[str, tuple[Candidate, Step, Usage]] = {}
    failures: dict[str, str] = {}
    parts = len(candidates) + rounds
    limit = most_bytes() if subject.device == 'cpu' else None  # once, as earlier candidates stay in memory
    with _cold_compiler(any(candidate.shapes for candidate in candidates)), setting.precision():
        for index, candidate in enumerate(candidates):
            report(f'memory of {candidate}', index, parts)
            try:
                # The candidate is built here first, so that errors show early.
                step = subject.step(candidate, setting)
                usage = (measure_alone(subject, candidate, setting, limit) if step.has_torch_memory
                         else Usage(None, None))
                measured[str(candidate)] = candidate, step, usage
            except CannotMeasure as error:
                failures[str(candidate)] = str(error)
        differences = {name: subject.max_abs_diff(step, setting) for name, (_, step, _) in measured.items()}
        times, speed = _time({name: step for name, (_, step, _) in measured.items()}, subject.device, setting, rounds,
                              warmup, lambda done: report('time', len(candidates) + done, parts))
        fused = {name: _fused(step) for name, (candidate, step, _) in measured.items() if not candidate.shapes}
    rows: dict[str, Row] = {}
    for name in map(str, candidates):
        rows[name] = dict.fromkeys(COLUMNS)
        rows[name].update(candidate=name, **asdict(setting), device=subject.device, failure=failures.get(name))
        if name in measured:
            candidate, _, usage = measured[name]
            rows[name].update(_values(times[name], speed, subject.flops(candidate, setting), usage),
                              max_abs_diff=differences[name], compile_s=usage.first_call if candidate.shapes else None,
                              fused=fused.get(name))
    return rows


def _fused(step: Step) -> str | None:
    """Returns how many attentions of a call have a fused kernel, such as '6 of 8'; None without torch's attention."""
    with FusedAttention() as seen:
        step.run()
    return f'{seen.fused} of {seen.calls}' if seen.calls else None


def _time(steps: dict[str, Step], device: str, setting: Setting, rounds: int, warmup: int,
          on_round: Callable[[int], None]) -> tuple[dict[str, list[float]], float]:
    """Returns the seconds of each step, and the operations per second of the fastest matrix product."""
    products = matrix_products(device, DTYPES[setting.dtype])
    calls = {**{name: step.run for name, step in steps.items()}, **{name: call for name, (_, call) in products.items()}}
    times = interleave(calls, rounds, warmup, on_round)
    return times, peak_speed({name: operations for name, (operations, _) in products.items()}, times)


def _values(times: Sequence[float], speed: float, flops: int | None, usage: Usage) -> Row:
    fastest = min(times)
    return dict(
        min_s=fastest,
        median_s=statistics.median(times),
        memory_mb=None if usage.bytes is None else usage.bytes / 1e6,
        gflops=None if flops is None else flops / 1e9,
        gemm_gflops_per_s=speed / 1e9,
        share_of_peak=None if flops is None else flops / fastest / speed)


@contextmanager
def _cold_compiler(is_used: bool) -> Iterator[None]:
    """Empties the caches of torch.compile in memory and on disk; the processes in the block share a new one."""
    if not is_used:
        yield
        return
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        yield


def interleave(calls: Mapping[str, Call], rounds: int, warmup: int,
               on_round: Callable[[int], None]) -> dict[str, list[float]]:
    """Times each call once per round, in a random order, so that noise affects all calls alike.

    Args:
        calls: Calls by name.
        rounds: Number of timed rounds.
        warmup: Number of untimed rounds before them.
        on_round: Called after each timed round, with the number of completed timed rounds.

    Returns:
        Name -> seconds of each round.
    """
    order = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in calls}
    for index in range(-warmup, rounds):
        for name in order.sample(list(calls), len(calls)):
            taken = seconds(calls[name])
            if index >= 0:
                found[name].append(taken)
        if index >= 0:
            on_round(index + 1)
    return found


def matrix_products(device: str, dtype: torch.dtype) -> dict[str, tuple[int, Call]]:
    """Makes products of square matrices, as a reference for the speed of models.

    Each is made as a matrix product and as a convolution, which use different kernels.

    Returns:
        Name -> number of operations, and a function that computes the product.
    """
    found: dict[str, tuple[int, Call]] = {}
    for side in SIDES[device]:
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        found[f'product of {side} x {side}'] = 2 * side**3, partial(torch.mm, b, a)
        image, weight = a[None, :, :, None], b[:, :, None, None]  # channels x pixels, and a kernel of one pixel
        found[f'convolution of {side} x {side}'] = 2 * side**3, partial(F.conv2d, image, weight)
    return found


def peak_speed(operations: Mapping[str, int], times: Mapping[str, Sequence[float]]) -> float:
    """Returns the operations per second of the fastest call; both arguments are dicts by the name of the call."""
    return max(count / min(times[name]) for name, count in operations.items())


def describe_machine(device: str) -> dict[str, str]:
    """Returns the name of the processor or GPU and the version of torch."""
    return dict(machine=torch.cuda.get_device_name() if device == 'cuda' else f'{_cpu()}, {os.cpu_count()} cores',
                torch=torch.__version__)


def _cpu() -> str:
    path = Path('/proc/cpuinfo')
    found = re.search(r'model name\s*:\s*(.+)', path.read_text()) if path.exists() else None
    return found[1] if found else platform.processor() or platform.machine()
