"""Makes tables and a plot of a benchmark's measurements."""
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, NullLocator

from openmmlab_runs.texts import figure_text, label

from .memory import OUT_OF_MEMORY
from .results import MARKERS, Row, markdown_table

Key = TypeVar('Key', bound=Hashable)
METRICS = {'min_s': 'seconds', 'memory_mb': 'peak memory (MB)'}
HEADER = ('image', 'candidate', 'min s', 'median s', 'images/s', 'time', 'MB', 'memory', 'GFLOP', 'of GEMM peak',
          'max abs diff', 'compile s', 'fused attention')


def exponent(rows: Sequence[Row], metric: str) -> float | None:
    """Fits the exponent of a metric's growth with the number of pixels, by least squares on logarithms.

    Args:
        rows: Rows of one candidate, at several sizes.
        metric: Name of a column; rows without a value are ignored.

    Returns:
        The exponent; None for fewer than two sizes.
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
              for name, of_one in _by(rows, _candidate).items() if exponent(of_one, 'min_s') is not None]
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
        _number(row['compile_s'], '.1f'),
        row['fused'] or ''] for row in rows if not _is_left_out(row)]


def plot(rows: Sequence[Row], title: str) -> Figure:
    """Plots time and memory against the image side on log axes, with a row per mode and a line per candidate."""
    measured = {row['candidate'] for row in rows if row['min_s']}
    modes = _by((row for row in rows if row['candidate'] in measured), lambda row: row['mode'])
    figure = Figure(figsize=(12, 4.5 * len(modes)), layout='constrained')
    grid = figure.subplots(len(modes), len(METRICS), squeeze=False)
    for axes_of_mode, (mode, of_mode) in zip(grid, modes.items(), strict=True):
        for axes, (metric, unit) in zip(axes_of_mode, METRICS.items(), strict=True):
            _draw(axes, of_mode, metric)
            axes.set(title=mode, ylabel=unit)
    grid[0][-1].legend(fontsize='small', loc='center left', bbox_to_anchor=(1, 0.5), frameon=False)
    figure.suptitle(figure_text(title))
    return figure


def _draw(axes: Axes, rows: Sequence[Row], metric: str) -> None:
    for i, (name, of_one) in enumerate(_lines(rows).items()):
        points = sorted((_side(row), row[metric]) for row in of_one if row[metric])
        axes.plot([x for x, _ in points], [y for _, y in points], label=label(name), marker=MARKERS[i % len(MARKERS)])
    sides = sorted({_side(row) for row in rows})
    axes.set(xscale='log', yscale='log', xlabel='image side (pixels; of other images the root of the area)')
    axes.set_xticks(sides, labels=[f'{side:.0f}' for side in sides])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(LogFormatter())  # plain numbers
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.grid(alpha=0.3)


def _lines(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Groups rows by candidate and by those of batch size, dtype and threads that vary."""
    names = {'batch_size': 'batch of {}', 'dtype': '{}', 'threads': '{} threads'}
    varying = [name for name in names if len({row[name] for row in rows}) > 1]
    return _by(rows, lambda row: ', '.join((row['candidate'], *(names[name].format(row[name]) for name in varying))))


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


def _candidate(row: Row) -> str:
    return row['candidate']


def _side(row: Row) -> float:
    return math.sqrt(row['height'] * row['width'])


def _is_left_out(row: Row) -> bool:
    """Returns whether the candidate failed for another reason than lack of memory."""
    return bool(row['failure']) and not row['failure'].startswith(OUT_OF_MEMORY)


def _number(value: float | None, spec: str) -> str:
    return '' if value is None else format(value, spec)


def _ratio(value: float | None, first: float | None) -> str:
    return f'{value / first:.2f}x' if value and first else ''
