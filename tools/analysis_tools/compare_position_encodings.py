"""Trains a config with one position encoding after another and tests each at several image sizes.

Writes results.csv, results.md and results.png, of all that it is asked for, to the work dir. Goes on from what is there
when it is run again, or asked for more.
"""
import argparse
import sys
from pathlib import Path

from mmengine.config import DictAction
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cpvt_mm.analysis.comparison import Run, complete, read_encodings
from cpvt_mm.analysis.report import plot, to_csv, to_markdown
from cpvt_mm.errors import UserError, exit_on_error
from cpvt_mm.files import write_figure, write_text

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
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={}, metavar='KEY=VALUE',
                        help='values of the config to override; keys are dotted')
    return parser.parse_args()


def report(args: argparse.Namespace, runs: list[Run]) -> str:
    """Writes the results of the runs that are complete, and returns them as a table."""
    found = [run for run in runs if run.is_complete(args.sizes)]
    metrics = found[0].metrics(args.sizes[0])
    if args.metric not in metrics:
        raise UserError(f'{args.metric!r} is not a metric of {args.config}; there are {", ".join(metrics)}.')
    rows = [dict(encoding=run.encoding, seed=run.seed, size=size, **run.metrics(size))
            for run in found for size in args.sizes]
    table = to_markdown(rows, 'encoding', args.metric)
    write_text(args.work_dir / 'results.csv', to_csv(rows))
    write_text(args.work_dir / 'results.md', table)
    write_figure(args.work_dir / 'results.png', plot(rows, 'encoding', args.metric, Path(args.config).stem))
    return table


@exit_on_error
def main() -> None:
    try:
        compare(parse_args())
    except KeyboardInterrupt:
        sys.exit('Interrupted: the same command goes on from here.')


def compare(args: argparse.Namespace) -> None:
    for name, value in (('--jobs', args.jobs), *(('--sizes', size) for size in args.sizes)):
        if value < 1:
            raise UserError(f'{name} is {value}, but must be at least 1.')
    encodings = read_encodings(args.encodings)
    for name in args.only or ():
        if name not in encodings:
            raise UserError(f'{name!r} is not among the encodings of {args.encodings}: {", ".join(encodings)}.')
    # A seed of all encodings before the next one, so that what is there can be compared.
    runs = [Run(args.config, name, encodings[name], seed, args.work_dir, args.cfg_options)
            for seed in dict.fromkeys(args.seeds) for name in dict.fromkeys(args.only or encodings)]
    for run in runs:
        run.claim_folder()
    with Progress(TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        tasks, num_complete = {}, 0
        for states in complete(runs, args.sizes, args.jobs):
            for name, (what, done, total) in states.items():
                tasks[name] = tasks[name] if name in tasks else progress.add_task(name)
                progress.update(tasks[name], description=f'{name}: {what}', completed=done, total=total)
            if num_complete < (num_complete := sum(run.is_complete(args.sizes) for run in runs)):
                report(args, runs)
    print(report(args, runs))
    print(f'Also in {args.work_dir}: results.csv, results.md, results.png')


if __name__ == '__main__':
    main()
