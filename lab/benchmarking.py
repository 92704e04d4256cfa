"""Settings that the benchmark measures, and tables with its results."""
import argparse
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpvt_mm.models.several_sizes import padded_size
from lab.backbones import Backbones, Setting
from lab.candidates import Candidate, CannotMeasure
from lab.counting import Work
from lab.counting import to_markdown as counts_to_markdown
from lab.results import Results, Row, to_csv
from lab.running import OUT_OF_MEMORY
from openmmlab_tools.files import write_text
from openmmlab_tools.texts import markdown_table

HEADER = ('image', 'candidate', 'min s', 'median s', 'images/s', 'time', 'MB', 'memory', 'GFLOP', 'max abs diff',
          'compile s')


def to_markdown(rows: Sequence[Row]) -> str:
    """Writes a section for each mode, batch size, dtype and number of threads, and for each batch of several sizes.

    Times and memory are also given relative to the first candidate's of the same size.
    """
    sections: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        key = tuple(row.get(name) for name in ('mode', 'batch_size', 'sizes', 'dtype', 'threads', 'device'))
        sections.setdefault(key, []).append(row)
    return '\n'.join(_section(rows) for rows in sections.values())


def _section(rows: Sequence[Row]) -> str:
    setting, first, table, failures = rows[0], dict[tuple[int, int], Row](), [], dict[str, None]()
    for row in rows:
        ours = first.setdefault((row['height'], row['width']), row)
        if row['failure'] and not row['failure'].startswith(OUT_OF_MEMORY):
            failures[f'- {row["candidate"]}: {row["failure"]}'] = None
            continue
        table.append([f'{row["height"]} x {row["width"]}', row['candidate'],
                      row['failure'] or _number(row['min_s'], '.4g'), _number(row['median_s'], '.4g'),
                      _number(row['median_s'] and row['batch_size'] / row['median_s'], '.3g'),
                      _ratio(row['min_s'], ours['min_s']), _number(row['memory_mb'], '.0f'),
                      _ratio(row['memory_mb'], ours['memory_mb']), _number(row['gflops'], '.1f'),
                      _number(row['max_abs_diff'], '.1e'), _number(row['compile_s'], '.1f')])
    on = 'CUDA' if setting['device'] == 'cuda' else (
        f'{setting["threads"]} thread{"s" if setting["threads"] > 1 else ""}')
    batch = setting.get('sizes') or setting['batch_size']
    return '\n'.join([f'### {setting["mode"]}, batch of {batch}, {setting["dtype"]}, {on}', '',
                      *([markdown_table(HEADER, table)] if table else []),
                      *(['Not measured:', '', *failures, ''] if failures else [])])


def _number(value: float | None, spec: str) -> str:
    return '' if value is None else format(value, spec)


def _ratio(value: float | None, first: float | None) -> str:
    return f'{value / first:.2f}x' if value and first else ''


def make_settings(args: argparse.Namespace) -> list[Setting]:
    settings = []
    for mode, batch_size, dtype, threads, sizes in itertools.product(
            args.modes, args.batch_sizes or [2], args.dtypes, args.threads, args.sizes):
        height, width = padded_size(sizes, 1)
        several, number = (sizes, len(sizes)) if len(sizes) > 1 else ((), batch_size)
        settings.append(Setting(mode, height, width, number, dtype, threads, several))
    return settings


def counted(subject: Backbones, candidates: list[Candidate], setting: Setting) -> str:
    """Returns the counts of all candidates as tables, and why others have none."""
    works, failures = dict[str, tuple[Work, Work]](), []
    for candidate in candidates:
        try:
            works[str(candidate)] = subject.count(candidate, setting)
        except CannotMeasure as error:
            failures.append(f'Not counted: {error}\n')
    return '\n'.join([counts_to_markdown(works) if works else '', *failures])


def report(results: Results, folder: Path) -> str:
    """Writes all results, and returns them as a table."""
    rows = [row for group in results.values() for row in group.values()]
    table = to_markdown(rows)
    head = '\n'.join(f'- {key}: {value}' for key, value in results.recipe.items())
    write_text(folder / 'results.csv', to_csv(rows))
    write_text(folder / 'table.md', f'{head}\n\n{table}')
    return table
