"""Trains the variants of a study, each with several seeds, and tests them.

Writes results.csv after each training, and at the end also results.md and results.png, with all requested variants and
seeds, to the work dir. Run it again to continue after an interruption, or to add seeds.
"""
import argparse
import os
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from rich.progress import track

from lab.arguments import positive
from lab.processes import run_tasks
from lab.results import MARKERS, Row, to_csv, write_report
from lab.study import Run, read_study
from openmmlab_tools.cli import add_cfg_options, resumable
from openmmlab_tools.errors import UserError
from openmmlab_tools.files import held, write_text
from openmmlab_tools.texts import label, markdown_table

# Columns of rows that are not metrics.
COLUMNS = ('variant', 'seed', 'test', 'parameters', 'seconds_per_iteration')
AXES = {'coco/bbox_mAP': 'box AP', 'coco/segm_mAP': 'mask AP', 'mIoU': 'mIoU, %'}  # in figures


def to_markdown(rows: Sequence[Row], metrics: Sequence[str]) -> str:
    """Makes a table with a line per variant: parameters of its backbone, shortest iteration time, and metrics.

    The cell of a metric has the mean over seeds and half of the range; it is empty if a variant lacks the metric.
    """
    variants, tests = names_of(rows, 'variant'), names_of(rows, 'test')
    # Fractions need more digits than percentages.
    digits = {metric: 1 if max(row.get(metric, 0) for row in rows) > 1 else 3 for metric in metrics}

    def line(variant: str) -> list[str]:
        [parameters] = {row['parameters'] for row in rows if row['variant'] == variant}
        times = [row['seconds_per_iteration'] for row in rows if row['variant'] == variant]
        known = [seconds for seconds in times if seconds is not None]
        cells = [_cell(values_of(rows, variant, test, metric), digits[metric]) for metric in metrics for test in tests]
        return [variant, f'{parameters / 1e6:.2f}', f'{min(known):.2f}' if known else '', *cells]

    columns = [f'{metric}, {test}' if len(tests) > 1 else metric for metric in metrics for test in tests]
    return markdown_table(['variant', 'backbone, M params', 's / iteration', *columns], map(line, variants))


def plot(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """Draws a panel per metric, with a line per variant over the tests; error bars span lowest to highest value."""
    variants, tests = names_of(rows, 'variant'), names_of(rows, 'test')
    figure = Figure(figsize=(2 + 5 * len(metrics), 4.5), layout='constrained')
    colours = colormaps['turbo'].resampled(len(variants))(range(len(variants)))
    for axes, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        axes.set_prop_cycle(color=colours)
        for i, variant in enumerate(variants):
            shift = 0.03 * (i - (len(variants) - 1) / 2)  # so that bars do not hide each other
            x = [k + shift for k, test in enumerate(tests) if values_of(rows, variant, test, metric)]
            values = [of_test for test in tests if (of_test := values_of(rows, variant, test, metric))]
            means, halves = zip(*map(spread, values), strict=True) if values else ((), ())
            axes.errorbar(x, means, yerr=[half or 0 for half in halves], label=label(variant), capsize=3,
                          marker=MARKERS[i % len(MARKERS)], linestyle='--' if i % 2 else '-')
        axes.set(ylabel=label(AXES.get(metric, metric)), xlabel='test')
        axes.set_xticks(range(len(tests)), labels=[*map(label, tests)])
        axes.grid(alpha=0.3)
    axes.legend(fontsize='small', loc='center left', bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def spread(values: Sequence[float]) -> tuple[float, float | None]:
    """Returns the mean of the values and half of their range, or None instead of the range of a single value."""
    return sum(values) / len(values), (max(values) - min(values)) / 2 if len(values) > 1 else None


def names_of(rows: Sequence[Mapping[str, Any]], column: str) -> list[str]:
    """Returns the variants or tests of rows, each once, in their order."""
    return list(dict.fromkeys(row[column] for row in rows))


def values_of(rows: Sequence[Row], variant: str, test: str, metric: str) -> list[float]:
    """Returns a metric of a variant in a test, one value for each seed that has it."""
    return [row[metric] for row in rows if (row['variant'], row['test']) == (variant, test) and metric in row]


def _cell(values: Sequence[float], digits: int) -> str:
    if not values:
        return ''
    mean, half = spread(values)
    return f'{mean:.{digits}f}' + ('' if half is None else f'±{half:.{digits}f}')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('study', type=Path, help='config file that sets variants and metrics, such as those in '
                        'configs/_base_/studies; docs/guides/comparing.md describes its settings')
    parser.add_argument('--only', nargs='+', metavar='NAME', help='names of the variants to use; all if not given')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1], help='each variant is trained once per seed')
    parser.add_argument('--jobs', type=positive, default=2, help='trainings at a time, which share the cores')
    parser.add_argument('--executor', choices=['local', 'slurm'], default='local',
                        help='where they run: processes of this machine, or jobs of Slurm (submitit)')
    parser.add_argument('--work-dir', type=Path,
                        help='folder of the results; work_dirs/<name of the study> if not given')
    add_cfg_options(parser)
    return parser.parse_args()


@resumable
def main() -> None:
    args = parse_args()
    study = read_study(args.study)
    folder = args.work_dir or Path('work_dirs') / args.study.stem
    for name in args.only or ():
        if name not in study.variants:
            raise UserError(f'{name!r} is not a variant of {args.study}: choose from {", ".join(study.variants)}.')
    # One seed of all variants before the next seed, so that partial results can be compared.
    runs = [Run(name, study.variants[name], seed, folder, args.cfg_options)
            for seed in dict.fromkeys(args.seeds) for name in dict.fromkeys(args.only or study.variants)]

    def finished_rows() -> list[Row]:
        rows = [row for run in runs for row in run.rows(study.tests)]
        names = [name for name in dict.fromkeys(chain(*rows)) if name not in COLUMNS]
        for metric in study.metrics:
            if metric not in names:
                raise UserError(f'{metric!r} of the study is not a metric of its tests: choose from '
                                f'{", ".join(names)}.')
        return rows

    with held(folder):
        for run in runs:
            run.claim_folder(study.tests)
        tasks = {str(run): partial(run.complete, study.tests) for run in runs if not run.rows(study.tests)}
        if args.executor == 'local':
            # Each process gets its share of the cores, because threads that compete for cores wait for each other.
            os.environ.setdefault('OMP_NUM_THREADS', str(max((os.cpu_count() or 1) // args.jobs, 1)))
        where = 'processes' if args.executor == 'local' else args.executor
        for _ in track(run_tasks(tasks, args.jobs, where, folder / 'jobs'), 'Training', len(tasks)):
            write_text(folder / 'results.csv', to_csv(finished_rows()))
        rows = finished_rows()
        print(write_report(folder / 'results', rows, to_markdown(rows, study.metrics), plot(rows, study.metrics)))
