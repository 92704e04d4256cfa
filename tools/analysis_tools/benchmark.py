"""Times forward passes and steps of training of PyramidCPVT and of other backbones, and measures their peak memory.

With --config they are parts of a detector or segmentor, else alone. All candidates take turns in one process; the
memory of each is measured in a process of its own. Writes results.csv, table.md and plot.png to the output folder.
"""
import argparse
import dataclasses
import itertools
import sys
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from cpvt_mm.benchmark.backbones import Backbones
from cpvt_mm.benchmark.candidates import PEERS, Candidate, parse_candidate
from cpvt_mm.benchmark.machine import describe
from cpvt_mm.benchmark.report import plot, to_markdown
from cpvt_mm.benchmark.results import Results
from cpvt_mm.benchmark.running import measure_group
from cpvt_mm.benchmark.settings import DTYPES, MODES, Setting, parse_size
from cpvt_mm.benchmark.steps import Subject
from cpvt_mm.benchmark.whole_models import WholeModels
from cpvt_mm.errors import UserError, exit_on_error
from cpvt_mm.files import write_figure, write_text
from cpvt_mm.models.backbones.pyramid_cpvt import ARCHS


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('candidates', nargs='*', metavar='NAME[:KEY=VALUE,...]',
                        help=f'what to measure, with arguments of its class: {", ".join(PEERS)}; all if none is '
                        'given')
    parser.add_argument('--arch', choices=ARCHS, default='small', help='the size that all have')
    parser.add_argument('--drop-path-rate', type=float, default=0.2, help='stochastic depth of all')
    parser.add_argument('--config', help='detector or segmentor to put the candidates into: a file, or a name such as '
                        'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py')
    parser.add_argument('--modes', nargs='+', choices=MODES, default=MODES, help='a forward pass, a step of training')
    parser.add_argument('--sizes', nargs='+', default=['224', '512'], metavar='SIZE',
                        help='of the images: a side, or HEIGHTxWIDTH')
    parser.add_argument('--batch-sizes', type=int, nargs='+', default=[2], help='images')
    parser.add_argument('--dtypes', nargs='+', choices=DTYPES, default=['fp32'],
                        help='all but fp32 by autocast, with weights in fp32')
    parser.add_argument('--threads', type=int, nargs='+', default=[torch.get_num_threads()], help='of the CPU')
    parser.add_argument('--device', choices=['cpu', 'cuda'], default='cpu', help='where to run')
    parser.add_argument('--channels-last', action='store_true', help='lay out images and weights so')
    parser.add_argument('--compile', nargs='+', choices=['static', 'dynamic'], default=[], metavar='SHAPES',
                        help='measure each candidate compiled, too: for static or dynamic shapes, or for either')
    parser.add_argument('--rounds', type=int, default=5, help='times that each is timed')
    parser.add_argument('--warmup', type=int, default=1, help='times that each is called before')
    parser.add_argument('--out-dir', type=Path, default=Path('work_dirs/benchmark'), help='folder of the results')
    parser.add_argument('--resume', action='store_true', help='go on from the results that are there')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    try:
        benchmark(parse_args())
    except KeyboardInterrupt:
        sys.exit('Interrupted: the same command with --resume goes on from here.')


def benchmark(args: argparse.Namespace) -> None:
    check(args)
    subject, candidates = choose_subject(args), choose_candidates(args)
    settings = [Setting(mode, *size, *rest) for mode, *rest, size in itertools.product(
        args.modes, args.batch_sizes, args.dtypes, args.threads, map(parse_size, args.sizes))]
    run = dict(vars(subject), candidates=list(map(str, candidates)), rounds=args.rounds, warmup=args.warmup,
               **describe(args.device))
    results = Results(args.out_dir, run, args.resume)
    with Progress(TextColumn('{task.description}'), BarColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task('', total=len(settings))
        for index, setting in enumerate(settings):
            if not results.has(candidates, setting):
                results.put(measure_group(
                    subject, candidates, setting, args.rounds, args.warmup,
                    lambda what, part, done=index: progress.update(task, description=what, completed=done + part)))
                report(results, args)
        progress.update(task, description='Done', completed=len(settings))
    print(report(results, args))
    print(f'Also in {args.out_dir}: results.csv, table.md, plot.png')


def check(args: argparse.Namespace) -> None:
    for name in ('batch_sizes', 'threads', 'rounds', 'warmup'):
        values = getattr(args, name)
        for value in values if isinstance(values, list) else [values]:
            if value < 1:
                raise UserError(f'--{name.replace("_", "-")} is {value}, but must be at least 1.')
    if not 0 <= args.drop_path_rate < 1:
        raise UserError(f'--drop-path-rate is {args.drop_path_rate}, but must be at least 0 and below 1.')
    if args.device == 'cuda' and not torch.cuda.is_available():
        raise UserError('--device is cuda, but torch finds no GPU here: take cpu, or install torch for CUDA.')


def choose_subject(args: argparse.Namespace) -> Subject:
    shared = dict(arch=args.arch, drop_path_rate=args.drop_path_rate, device=args.device,
                  channels_last=args.channels_last)
    return WholeModels(args.config, **shared) if args.config else Backbones(**shared)


def choose_candidates(args: argparse.Namespace) -> list[Candidate]:
    names = args.candidates or [name for name, peer in PEERS.items() if peer.type or not args.config]
    chosen = list(map(parse_candidate, dict.fromkeys(names)))
    ways = dict.fromkeys((None, *args.compile))
    return [dataclasses.replace(candidate, shapes=shapes) for candidate in chosen for shapes in ways]


def report(results: Results, args: argparse.Namespace) -> str:
    """Writes the table and the plot of all results, and returns the table."""
    table = to_markdown(results.rows)
    head = '\n'.join(f'- {key}: {value}' for key, value in results.run.items())
    write_text(args.out_dir / 'table.md', f'{head}\n\n{table}')
    title = f'{Path(args.config).stem if args.config else args.arch}, {results.run["machine"]}'
    if any(row['min_s'] for row in results.rows):
        write_figure(args.out_dir / 'plot.png', plot(results.rows, title))
    return table


if __name__ == '__main__':
    main()
