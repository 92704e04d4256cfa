"""Trains a config with one position encoding after another and tests each at several image sizes.

Writes results.csv, results.md and results.png, of all that it is asked for, to the work dir. Goes on from what is there
when it is run again, or asked for more.
"""
import argparse
import os
from functools import partial
from pathlib import Path

import torch

from cpvt_mm.analysis.comparison import Run, read_encodings
from cpvt_mm.analysis.report import write_report
from cpvt_mm.cli import add_cfg_options, check_least, resumable
from cpvt_mm.errors import UserError, exit_on_error
from cpvt_mm.tables import Row
from cpvt_mm.work import run_in_processes

CONFIGS = Path(__file__).parents[2] / 'configs'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('config', nargs='?', default=CONFIGS / 'toy/segformer_pyramid-cpvt-nano_toy-shapes-128x128.py',
                        help='config file of mmdet or mmseg whose backbone has the key position_encoding')
    parser.add_argument('--encodings', default=CONFIGS / '_base_/position_encodings.py',
                        help='config file that sets encodings: names, and values of position_encoding')
    parser.add_argument('--only', nargs='+', metavar='NAME', help='names of those encodings to take; all if not given')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1], help='one training for each')
    parser.add_argument('--sizes', type=int, nargs='+', default=[96, 128, 192, 256, 384],
                        help='pixels a side of the test images')
    parser.add_argument('--jobs', type=int, default=2, help='trainings at a time; each gets its share of the cores')
    parser.add_argument('--metric', default='mIoU', help='what the table and the plot show')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/position_encodings'),
                        help='folder of the study')
    add_cfg_options(parser)
    return parser.parse_args()


def report(args: argparse.Namespace, rows: list[Row]) -> str:
    """Writes the results of the runs that are complete, and returns them as a table."""
    if args.metric not in rows[0]:
        metrics = [name for name in rows[0] if name not in ('encoding', 'seed', 'size')]
        raise UserError(f'{args.metric!r} is not a metric of {args.config}; there are {", ".join(metrics)}.')
    return write_report(args.work_dir, rows, rows, 'encoding', args.metric, Path(args.config).stem)


@exit_on_error
@resumable
def main() -> None:
    args = parse_args()
    check_least(args, 1, 'jobs', 'sizes')
    encodings = read_encodings(args.encodings)
    for name in args.only or ():
        if name not in encodings:
            raise UserError(f'{name!r} is not among the encodings of {args.encodings}: {", ".join(encodings)}.')
    # A seed of all encodings before the next one, so that what is there can be compared.
    runs = [Run(args.config, name, encodings[name], seed, args.work_dir, args.cfg_options)
            for seed in dict.fromkeys(args.seeds) for name in dict.fromkeys(args.only or encodings)]
    for run in runs:
        run.claim_folder()
    tasks = {str(run): partial(run.complete, args.sizes) for run in runs if not run.rows(args.sizes)}
    # Each process has its share of the cores: threads that wait for each other are slow where another has a core.
    start = partial(torch.set_num_threads, max((os.cpu_count() or 1) // args.jobs, 1))
    for _ in run_in_processes('Training', tasks, args.jobs, start):
        report(args, [row for run in runs for row in run.rows(args.sizes)])
    print(report(args, [row for run in runs for row in run.rows(args.sizes)]))
    print(f'Also in {args.work_dir}: results.csv, results.md, results.png')


if __name__ == '__main__':
    main()
