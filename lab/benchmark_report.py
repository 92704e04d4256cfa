"""Makes tables of a benchmark's measurements."""
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from .memory import OUT_OF_MEMORY
from .results import Row, markdown_table

Key = TypeVar('Key', bound=Hashable)
METRICS = ('min_s', 'memory_mb')
HEADER = ('image', 'candidate', 'min s', 'median s', 'images/s', 'time', 'MB', 'memory', 'GFLOP', 'of GEMM peak',
          'max abs diff', 'compile s')


def exponent(rows: Sequence[Row], metric: str) -> float | None:
    """Fits the exponent of a metric's growth with the pixels, by least squares on logarithms; None for fewer than two
    sizes.
    """
    points = [(row['height'] * row['width'], row[metric]) for row in rows if row[metric]]
    if len({pixels for pixels, _ in points}) < 2:
        return None
    pixels, values = np.log(points).T
    return float(np.polyfit(pixels, values, deg=1)[0])


def to_markdown(rows: Sequence[Row]) -> str:
    """Writes a section for each mode, batch size, dtype and number of threads: values, their growth, and failures."""
    return '\n'.join(_section(rows) for rows in _by(rows, _all_but_size).values())


def _section(rows: Sequence[Row]) -> str:
    mode, batch_size, dtype, threads, device = _all_but_size(rows[0])
    on = 'CUDA' if device == 'cuda' else f'{threads} thread{"s" if threads > 1 else ""}'
    peak = max((row['gemm_gflops_per_s'] for row in rows if row['gemm_gflops_per_s']), default=None)
    lines = [f'### {mode}, batch of {batch_size}, {dtype}, {on}', '']
    if peak:
        lines += [f'GEMM peak: {peak:.1f} GFLOP/s. Times and memory are also given relative to the first candidate\'s.',
                  '']
    table = [cells for group in _by(rows, _size).values() for cells in _group(group)]
    if table:
        lines.append(markdown_table(HEADER, table))
    growth = [[name, *(_number(exponent(of_one, metric), '.2f') for metric in METRICS)]
              for name, of_one in _by(rows, lambda row: row['candidate']).items()
              if exponent(of_one, 'min_s') is not None]
    if growth:
        lines += ['Growth, as a power of the number of pixels:', '',
                  markdown_table(['candidate', 'time', 'memory'], growth)]
    failures = dict.fromkeys(f'- {row["candidate"]}: {row["failure"]}' for row in rows if _is_left_out(row))
    return '\n'.join([*lines, *(['Not measured:', '', *failures, ''] if failures else [])])


def _group(rows: Sequence[Row]) -> list[list[str]]:
    """Returns the cells of the table rows for one size."""
    first = rows[0]
    return [[
        f'{row["height"]} x {row["width"]}',
        row['candidate'],
        row['failure'] or _number(row['min_s'], '.4g'),
        _number(row['median_s'], '.4g'),
        _number(row['median_s'] and row['batch_size'] / row['median_s'], '.3g'),
        _ratio(row['min_s'], first['min_s']),
        _number(row['memory_mb'], '.0f'),
        _ratio(row['memory_mb'], first['memory_mb']),
        _number(row['gflops'], '.1f'),
        _number(row['share_of_peak'], '.0%'),
        _number(row['max_abs_diff'], '.1e'),
        _number(row['compile_s'], '.1f')] for row in rows if not _is_left_out(row)]


def _by(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Groups rows by a key; keeps the order of keys and rows."""
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _all_but_size(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ('mode', 'batch_size', 'dtype', 'threads', 'device'))


def _size(row: Row) -> tuple[int, int]:
    return row['height'], row['width']


def _is_left_out(row: Row) -> bool:
    """Returns whether the candidate failed for another reason than lack of memory."""
    return bool(row['failure']) and not row['failure'].startswith(OUT_OF_MEMORY)


def _number(value: float | None, spec: str) -> str:
    return '' if value is None else format(value, spec)


def _ratio(value: float | None, first: float | None) -> str:
    return f'{value / first:.2f}x' if value and first else ''
