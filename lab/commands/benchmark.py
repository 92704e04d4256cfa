"""Times forward passes and training steps of PyramidCPVT and of other backbones, and measures their peak memory.

All candidates are timed in turns in one process. The memory of each is measured in a separate process. Writes
results.csv and table.md to the output folder. Run it again to continue after an interruption, or to add sizes.

With --count, nothing is timed: it prints the floating-point operations and the bytes of each operator, and the calls of
Python, which do not depend on the machine.
"""
import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from cpvt_mm.archs import PYRAMID_ARCHS
from cpvt_mm.models.several_sizes import padded_size
from lab.arguments import COCO, parse_batch, positive
from lab.backbones import DTYPES, MODES, Backbones, Setting
from lab.candidates import PEERS, Candidate, CannotMeasure, parse_candidate
from lab.counting import Work
from lab.counting import to_markdown as counts_to_markdown
from lab.results import Results, Row, to_csv
from lab.running import OUT_OF_MEMORY, describe_machine, measure_group
from openmmlab_tools.cli import resumable
from openmmlab_tools.errors import UserError
from openmmlab_tools.files import held, write_text
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
    one, first, table, failures = rows[0], dict[tuple[int, int], Row](), [], dict[str, None]()
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
    on = 'CUDA' if one['device'] == 'cuda' else f'{one["threads"]} thread{"s" if one["threads"] > 1 else ""}'
    return '\n'.join([f'### {one["mode"]}, batch of {one.get("sizes") or one["batch_size"]}, {one["dtype"]}, {on}', '',
                      *([markdown_table(HEADER, table)] if table else []),
                      *(['Not measured:', '', *failures, ''] if failures else [])])


def _number(value: float | None, spec: str) -> str:
    return '' if value is None else format(value, spec)


def _ratio(value: float | None, first: float | None) -> str:
    return f'{value / first:.2f}x' if value and first else ''


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('candidates', nargs='*', metavar='NAME[:KEY=VALUE,...]',
                        help=f'what to measure, with arguments of its class: {", ".join(PEERS)}; all but '
                        'grouped if none is given')
    parser.add_argument('--arch', choices=PYRAMID_ARCHS, default='small', help='size of all candidates')
    parser.add_argument('--drop-path-rate', type=float, default=0.2, help='stochastic depth rate of the last block')
    parser.add_argument('--modes', nargs='+', choices=MODES, default=MODES,
                        help='measure forward passes or training steps')
    parser.add_argument('--sizes', type=parse_batch, nargs='+', default=list(map(parse_batch, ('224', '512'))),
                        metavar='SIZE', help='image sizes in pixels: one side, or HEIGHTxWIDTH; or those of each image '
                        f'of a batch, as in 800x1216+480x640; coco is {COCO}')
    parser.add_argument('--batch-sizes', type=positive, nargs='+', default=[],
                        help='images in a batch of one size; 2 if left out')
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=['fp32'],
                        help='bf16 and fp16 by autocast, with weights in fp32; tf32 on a GPU only')
    parser.add_argument('--threads', type=positive, nargs='+', default=[torch.get_num_threads()], help='CPU threads')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu', help='device to run on')
    parser.add_argument('--compile', nargs='+', choices=['static', 'dynamic'], default=[], metavar='SHAPES',
                        help='also measure each candidate compiled with torch.compile, for static or dynamic shapes, '
                        'or both')
    parser.add_argument('--rounds', type=positive, default=5, help='number of timed calls of each candidate')
    parser.add_argument('--warmup', type=positive, default=1, help='number of untimed calls before them')
    parser.add_argument('--count', action='store_true',
                        help='count instead: operations and bytes on the meta device, with weights and images in the '
                        'dtype')
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/benchmark'), help='folder of the results')
    return parser.parse_args()


@resumable
def main() -> None:
    args = parse_args()
    check(args)
    subject = Backbones(args.arch, args.drop_path_rate, args.device)
    chosen = map(parse_candidate, dict.fromkeys(args.candidates or [name for name in PEERS if name != 'grouped']))
    candidates = [dataclasses.replace(candidate, shapes=shapes) for candidate in chosen
                  for shapes in dict.fromkeys((None, *args.compile))]
    settings = make_settings(args)
    if args.count:
        for setting in settings:
            conditions, _, _ = str(setting).rpartition(', ')  # without the threads
            print(f'### {args.arch}, {conditions}\n\n{counted(subject, candidates, setting)}')
        return
    with held(args.out_dir):
        results = Results(args.out_dir, dict(dataclasses.asdict(subject), candidates=list(map(str, candidates)),
                                             rounds=args.rounds, warmup=args.warmup, **describe_machine(args.device)))
        for setting in track([setting for setting in settings if str(setting) not in results], 'Measuring'):
            results.put(str(setting), measure_group(subject, candidates, setting, args.rounds, args.warmup))
            report(results, args.out_dir)
        print(report(results, args.out_dir))
    print(f'Also in {args.out_dir}: results.csv, table.md')


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


def check(args: argparse.Namespace) -> None:
    number = max(map(len, args.sizes))
    if number > 1 and args.batch_sizes not in ([], [1]):
        raise UserError(f'--batch-sizes is {" ".join(map(str, args.batch_sizes))}, but --sizes gives the sizes of all '
                        f'{number} images of a batch: leave out --batch-sizes.')
    if args.count and args.compile:
        raise UserError('--count counts operator by operator: leave out --compile.')
    if args.device == 'cpu' and 'tf32' in args.dtypes:
        raise UserError('--dtypes has tf32, which needs a GPU: use fp32, or --device cuda.')


def report(results: Results, folder: Path) -> str:
    """Writes all results, and returns them as a table."""
    rows = [row for group in results.values() for row in group.values()]
    table = to_markdown(rows)
    head = '\n'.join(f'- {key}: {value}' for key, value in results.recipe.items())
    write_text(folder / 'results.csv', to_csv(rows))
    write_text(folder / 'table.md', f'{head}\n\n{table}')
    return table
