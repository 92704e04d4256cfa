"""Measures a group of candidates."""
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from unittest.mock import patch

import torch

from cpvt_mm.tables import Row
from cpvt_mm.work import Report

from . import gemm
from .candidates import Candidate, CannotMeasure
from .memory import Usage, measure_alone, most_bytes
from .settings import DTYPES, Setting
from .steps import Step, Subject
from .timing import interleave

COLUMNS = ('candidate', 'mode', 'height', 'width', 'batch_size', 'dtype', 'threads', 'device', 'min_s', 'median_s',
           'memory_mb', 'gflops', 'gemm_gflops_per_s', 'share_of_peak', 'max_abs_diff', 'compile_s', 'failure')


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
        seconds, peak = _time({name: step for name, (_, step, _) in measured.items()}, subject.device, setting, rounds,
                              warmup, lambda done: report('time', len(candidates) + done, parts))
    rows: dict[str, Row] = {}
    for name in map(str, candidates):
        rows[name] = dict.fromkeys(COLUMNS)
        rows[name].update(candidate=name, **asdict(setting), device=subject.device, failure=failures.get(name))
        if name in measured:
            candidate, _, usage = measured[name]
            rows[name].update(_values(seconds[name], peak, subject.flops(candidate, setting), usage),
                              max_abs_diff=differences[name], compile_s=usage.first_call if candidate.shapes else None)
    return rows


def _time(steps: dict[str, Step], device: str, setting: Setting, rounds: int, warmup: int,
          on_round: Callable[[int], None]) -> tuple[dict[str, list[float]], float]:
    """Returns the seconds of each step, and the operations per second of the fastest matrix product."""
    products = gemm.products(device, DTYPES[setting.dtype])
    calls = {**{name: step.run for name, step in steps.items()}, **{name: call for name, (_, call) in products.items()}}
    seconds = interleave(calls, rounds, warmup, on_round)
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
    """Empties the caches of torch.compile in memory and on disk; the processes in the block share a new one."""
    if not is_used:
        yield
        return
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder):
        yield
