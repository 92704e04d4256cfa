"""Measuring a group of candidates, and one group after another."""
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch

from cpvt_mm.tables import Row

from . import gemm
from .candidates import Candidate, CannotMeasure
from .memory import Usage, measure_alone, most_bytes
from .settings import DTYPES, Setting
from .steps import Step, Subject
from .timing import CLOCKS, interleave

# Called with what is done next, and the part of the group that is done.
OnProgress = Callable[[str, float], None]


def measure_group(subject: Subject, candidates: Sequence[Candidate], setting: Setting, rounds: int, warmup: int,
                  on_progress: OnProgress) -> list[Row]:
    """Measures candidates under one setting: the memory of each in a process of its own, then the time, in turns.

    Args:
        subject: What they are measured as.
        candidates: All of the group; no two are alike.
        setting: The same for all.
        rounds: Times that each is timed; at least 1.
        warmup: Times that each is called before that; at least 1.
        on_progress: Called with what is done next, and the part of the group that is done.

    Returns:
        A row for each candidate, with all of COLUMNS (see `results.py`); of one without values `failure` tells why.
    """
    torch.set_num_threads(setting.threads)
    measured: dict[str, tuple[Candidate, Step, Usage]] = {}
    failures: dict[str, str] = {}
    parts = len(candidates) + rounds
    limit = most_bytes() if subject.device == 'cpu' else None  # the same for all, though the first stay for their turns
    with _cold_compiler(any(candidate.shapes for candidate in candidates)):
        for index, candidate in enumerate(candidates):
            on_progress(f'{setting}: memory of {candidate}', index / parts)
            try:
                # Built here first, since that is soon known to fail.
                step = subject.step(candidate, setting)
                measured[str(candidate)] = candidate, step, measure_alone(subject, candidate, setting, limit)
            except CannotMeasure as error:
                failures[str(candidate)] = str(error)
        differences = {name: subject.max_abs_diff(step, setting) for name, (_, step, _) in measured.items()}
        seconds, peak = _time({name: step for name, (_, step, _) in measured.items()}, subject.device, setting, rounds,
                              warmup, lambda done: on_progress(f'{setting}: time', (len(candidates) + done) / parts))
    rows = []
    for candidate in candidates:
        row = dict(candidate=str(candidate), **vars(setting), device=subject.device)
        if str(candidate) in failures:
            row['failure'] = failures[str(candidate)]
        else:
            _, _, usage = measured[str(candidate)]
            row.update(_values(seconds[str(candidate)], peak, subject.flops(candidate, setting), usage),
                       max_abs_diff=differences[str(candidate)],
                       compile_s=usage.first_call if candidate.shapes else None)
        rows.append(row)
    return rows


def _time(steps: dict[str, Step], device: str, setting: Setting, rounds: int, warmup: int,
          on_round: Callable[[int], None]) -> tuple[dict[str, list[float]], float]:
    """Seconds of each step, and operations a second of the fastest product of matrices between them."""
    products = gemm.products(device, DTYPES[setting.dtype])
    calls = {**{name: step.run for name, step in steps.items()}, **{name: call for name, (_, call) in products.items()}}
    seconds = interleave(calls, rounds, warmup, CLOCKS[device], on_round)
    return seconds, gemm.peak({name: operations for name, (operations, _) in products.items()}, seconds)


def _values(seconds: Sequence[float], peak: float, flops: int | None, usage: Usage) -> Row:
    fastest = min(seconds)
    return dict(
        min_s=fastest,
        median_s=statistics.median(seconds),
        memory_mb=None if usage.bytes is None else usage.bytes / 1e6,
        gflops=None if flops is None else flops / 1e9,
        gemm_gflops_per_s=peak / 1e9,
        share_of_peak=None if flops is None else flops / fastest / peak)


@contextmanager
def _cold_compiler(is_used: bool) -> Iterator[None]:
    """Has torch.compile begin with nothing, in memory or on disk; what one process compiles another may use."""
    if not is_used:
        yield
        return
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        yield
