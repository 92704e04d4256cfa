"""Times forward passes and training steps of PyramidCPVT and of other backbones, and measures their peak memory.

With --config, backbones are measured in a detector or segmentor, else alone. All candidates are timed in turns in one
process. The memory of each is measured in a separate process. Writes results.csv and table.md to the output folder. Run
it again to continue after an interruption, or to add sizes.

With --count, nothing is timed: it prints the floating-point operations and the bytes of each operator, which do not
depend on the machine.
"""
import argparse
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from rich.progress import track

from cpvt_mm.tokens.padding import padded_size
from cpvt_mm.zoo.families import PYRAMID_ARCHS
from lab.arguments import COCO, check_least, parse_batch
from lab.backbones import Backbones
from lab.candidates import PEERS, Candidate, CannotMeasure, parse_candidate
from lab.counting import Work
from lab.counting import to_markdown as counts_to_markdown
from lab.results import Results, Row, to_csv
from lab.running import OUT_OF_MEMORY, describe_machine, measure_group
from lab.steps import DTYPES, MODES, Setting
from lab.study import read_study
from lab.whole_models import WholeModels
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.files import held, write_text
from openmmlab_runs.texts import markdown_table

Key = TypeVar('Key', bound=Hashable)
METRICS = ('min_s', 'memory_mb')
HEADER = ('image', 'candidate', 'min s', 'median s', 'images/s', 'time', 'MB', 'memory', 'GFLOP', 'of GEMM peak',
          'max abs diff', 'compile s')
BACKBONE = 'model.backbone.'


def exponent(rows: Sequence[Row], metric: str) -> float | None:
    """Fits the exponent of a metric's growth with the pixels, on logarithms; None for fewer than two sizes."""
    points = [(row['height'] * row['width'], row[metric]) for row in rows if row[metric]]
    if len({pixels for pixels, _ in points}) < 2:
        return None
    pixels, values = np.log(points).T
    return float(np.polyfit(pixels, values, deg=1)[0])


def to_markdown(rows: Sequence[Row]) -> str:
    """Writes a section for each mode, batch size, dtype and number of threads, and for each batch of several sizes.

    It has values, their growth with the size, and failures.
    """
    return '\n'.join(_section(rows) for rows in _by(rows, _all_but_size).values())


def _section(rows: Sequence[Row]) -> str:
    mode, batch_size, sizes, dtype, threads, device = _all_but_size(rows[0])
    on = 'CUDA' if device == 'cuda' else f'{threads} thread{"s" if threads > 1 else ""}'
    peak = max((row['gemm_gflops_per_s'] for row in rows if row['gemm_gflops_per_s']), default=None)
    lines = [f'### {mode}, batch of {sizes or batch_size}, {dtype}, {on}', '']
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
    # Images of several sizes are a section of their own: their times do not grow with the pixels of the largest one.
    return tuple(row.get(name) for name in ('mode', 'batch_size', 'sizes', 'dtype', 'threads', 'device'))


def _size(row: Row) -> tuple[int, int]:
    return row['height'], row['width']


def _is_left_out(row: Row) -> bool:
    """Returns whether the candidate failed for another reason than lack of memory."""
    return bool(row['failure']) and not row['failure'].startswith(OUT_OF_MEMORY)


def _number(value: float | None, spec: str) -> str:
    return '' if value is None else format(value, spec)


def _ratio(value: float | None, first: float | None) -> str:
    return f'{value / first:.2f}x' if value and first else ''


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('candidates', nargs='*', metavar='NAME[:KEY=VALUE,...]',
                        help=f'what to measure, with arguments of its class: {", ".join(PEERS)}; all but '
                        'grouped if none is given')
    parser.add_argument('--study', type=Path, help='study of `compare` whose variants set arguments of the backbone: '
                        'measures each candidate with those of each variant')
    parser.add_argument('--arch', choices=PYRAMID_ARCHS, default='small', help='size of all candidates')
    parser.add_argument('--drop-path-rate', type=float, default=0.2, help='stochastic depth rate of the last block')
    parser.add_argument('--config', help='detector or segmentor to put the candidates into: a file, or a name such as '
                        'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py')
    parser.add_argument('--modes', nargs='+', choices=MODES, default=MODES,
                        help='measure forward passes or training steps')
    parser.add_argument('--sizes', type=parse_batch, nargs='+', default=list(map(parse_batch, ('224', '512'))),
                        metavar='SIZE', help='image sizes in pixels: one side, or HEIGHTxWIDTH; or those of each image '
                        f'of a batch, as in 800x1216+480x640; coco is {COCO}')
    parser.add_argument('--batch-sizes', type=int, nargs='+', default=[],
                        help='images in a batch of one size; 2 if left out')
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=['fp32'],
                        help='bf16 and fp16 by autocast, with weights in fp32; tf32 on a GPU only')
    parser.add_argument('--threads', type=int, nargs='+', default=[torch.get_num_threads()], help='CPU threads')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu', help='device to run on')
    parser.add_argument('--compile', nargs='+', choices=['static', 'dynamic'], default=[], metavar='SHAPES',
                        help='also measure each candidate compiled with torch.compile, for static or dynamic shapes, '
                        'or both')
    parser.add_argument('--rounds', type=int, default=5, help='number of timed calls of each candidate')
    parser.add_argument('--warmup', type=int, default=1, help='number of untimed calls before them')
    parser.add_argument('--count', action='store_true',
                        help='count instead: operations and bytes on the meta device, with weights and images in the '
                        'dtype')
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/benchmark'), help='folder of the results')
    return parser.parse_args()


@exit_on_error
@resumable
def main() -> None:
    args = parse_args()
    check(args)
    subject, candidates = choose_subject(args), choose_candidates(args)
    settings = make_settings(args)
    if args.count and isinstance(subject, Backbones):
        for setting in settings:
            conditions, _, _ = str(setting).rpartition(', ')  # without the threads
            print(f'### {args.arch}, {conditions}\n\n{counted(subject, candidates, setting)}')
        return
    with held(args.out_dir):
        results = Results(args.out_dir, dict(dataclasses.asdict(subject), candidates=list(map(str, candidates)),
                                             rounds=args.rounds, warmup=args.warmup, **describe_machine(args.device)))
        for setting in track([setting for setting in settings if str(setting) not in results], 'Measuring'):
            results.put(str(setting), measure_group(subject, candidates, setting, args.rounds, args.warmup))
            report(results, args)
        print(report(results, args))
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
    works, failures = dict[str, tuple[Work, Work | None]](), []
    for candidate in candidates:
        try:
            works.update(subject.count(candidate, setting))
        except CannotMeasure as error:
            failures.append(f'Not counted: {error}\n')
    return '\n'.join([counts_to_markdown(works) if works else '', *failures])


def check(args: argparse.Namespace) -> None:
    check_least(args, 1, 'batch_sizes', 'threads', 'rounds', 'warmup')
    if not 0 <= args.drop_path_rate < 1:
        raise UserError(f'--drop-path-rate is {args.drop_path_rate}, but must be at least 0 and below 1.')
    number = max(map(len, args.sizes))
    if number > 1 and args.batch_sizes not in ([], [1]):
        raise UserError(f'--batch-sizes is {" ".join(map(str, args.batch_sizes))}, but --sizes gives the sizes of all '
                        f'{number} images of a batch: leave out --batch-sizes.')
    if number > 1 and args.config:
        raise UserError('--sizes has a batch of several sizes, which is for backbones alone: leave out --config.')
    if args.count and (args.config or args.compile):
        raise UserError('--count counts backbones alone, operator by operator: leave out --config and --compile.')
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('--device is cuda, but torch finds no GPU: use cpu, or install torch for CUDA.')
    if args.device == 'cpu' and 'tf32' in args.dtypes:
        raise UserError('--dtypes has tf32, which needs a GPU: use fp32, or --device cuda.')


def choose_subject(args: argparse.Namespace) -> Backbones | WholeModels:
    shared: dict[str, Any] = dict(arch=args.arch, drop_path_rate=args.drop_path_rate, device=args.device)
    return WholeModels(args.config, **shared) if args.config else Backbones(**shared)


def choose_candidates(args: argparse.Namespace) -> list[Candidate]:
    names = args.candidates or [name for name, peer in PEERS.items() if name != 'grouped' and (
        peer.type or not args.config)]
    chosen = list(map(parse_candidate, dict.fromkeys(names)))
    if args.study:
        variants = backbone_options(args.study)
        chosen = [dataclasses.replace(candidate, arguments={**candidate.arguments, **options})
                  for candidate in chosen for options in variants]
    ways = dict.fromkeys((None, *args.compile))
    return [dataclasses.replace(candidate, shapes=shapes) for candidate in chosen for shapes in ways]


def backbone_options(path: Path) -> list[dict[str, Any]]:
    """Returns the arguments of the backbone that each variant of a study sets."""
    variants = read_study(path).variants
    if len({variant.config for variant in variants.values()}) > 1:
        raise UserError(f'--study is {path}, whose variants have several configs: choose one of a single config.')
    for name, variant in variants.items():
        for key in variant.options:
            if not key.startswith(BACKBONE):
                raise UserError(f'--study is {path}, whose variant {name!r} sets {key}: choose one that sets only '
                                'options of model.backbone.')
    return [{key.removeprefix(BACKBONE): value for key, value in variant.options.items()}
            for variant in variants.values()]


def report(results: Results, args: argparse.Namespace) -> str:
    """Writes all results, and returns them as a table."""
    rows = [row for group in results.values() for row in group.values()]
    table = to_markdown(rows)
    head = '\n'.join(f'- {key}: {value}' for key, value in results.recipe.items())
    write_text(args.out_dir / 'results.csv', to_csv(rows))
    write_text(args.out_dir / 'table.md', f'{head}\n\n{table}')
    return table
