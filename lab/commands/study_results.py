"""Prints which variants of studies are best in each test, from their results.csv files, and draws them.

Several files may have the same variants and tests, with other seeds. The best variant has the highest mean over its
seeds. The variants whose range of seeds overlaps the range of the best are listed after it. Variants with a single seed
have no range, so they cannot be the best.
"""
import argparse
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from pathlib import Path
from statistics import mean

from matplotlib.figure import Figure

from lab.commands.compare import AXES, COLUMNS, names_of, spread, to_markdown, values_of
from lab.results import Row, read_csv
from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.files import write_figure
from openmmlab_tools.texts import label, markdown_table, some

PANELS = 4  # in a row of a figure


def read_rows(files: Iterable[Path], only: Sequence[str] = ()) -> list[Row]:
    """Reads the rows of files that `compare` wrote, for some variants in this order, or for all."""
    rows: list[Row] = []
    for path in files:
        for line in read_csv(path):
            seconds = line.get('seconds_per_iteration')
            metrics = {name: float(value) for name, value in line.items() if name not in COLUMNS and value}
            rows.append(dict(variant=line['variant'], seed=int(line['seed']), test=line.get('test', ''),
                             parameters=int(line['parameters']), **metrics,
                             seconds_per_iteration=float(seconds) if seconds else None))
    names = names_of(rows, 'variant')
    if missing := [name for name in only if name not in names]:
        raise UserError(f'the files have no results of {some(missing)}: choose from {", ".join(names)}.')
    return [row for name in only or names for row in rows if row['variant'] == name]


def best_of(scores: Mapping[str, Sequence[float]]) -> list[str]:
    """Returns the variants of a test that are best, the variant with the highest mean first."""
    several = sorted((name for name, values in scores.items() if len(values) > 1), key=lambda name: -mean(scores[name]))
    return [name for name in several if max(scores[name]) >= min(scores[several[0]])]


def best_table(rows: Sequence[Row], metric: str) -> str:
    """Makes a table with a line for each test: the best variant, its mean, and the variants that are as good."""
    scores = {test: {variant: values_of(rows, variant, test, metric) for variant in names_of(rows, 'variant')}
              for test in names_of(rows, 'test')}
    return markdown_table([f'test, {metric}', 'best', 'mean', 'as good within the seeds'], [
        [test, best[0], f'{mean(values[best[0]]):.3g}', ', '.join(best[1:])]
        for test, values in scores.items() if (best := best_of(values))])


def plot(rows: Sequence[Row], metric: str, against: str, axis: str) -> Figure:
    """Draws a panel for each variant: its line in blue, the variant `against` in orange, all others in grey.

    Error bars span the lowest to the highest seed.
    """
    variants, tests = names_of(rows, 'variant'), names_of(rows, 'test')
    panels = [variant for variant in variants if variant != against]
    figure = Figure(figsize=(11, 2.4 * ceil(len(panels) / PANELS) + 0.5), layout='constrained')
    grid = figure.subplots(ceil(len(panels) / PANELS), PANELS, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, shown in zip(grid, panels, strict=False):
        for variant in (*(name for name in panels if name != shown), against, shown):
            x, values = zip(*((test, of_test) for test in tests if (of_test := values_of(rows, variant, test, metric))),
                            strict=True)
            means, halves = zip(*map(spread, values), strict=True)
            if variant in (against, shown):
                axes.errorbar(x, means, yerr=[half or 0 for half in halves], capsize=3, linewidth=2, marker='o', ms=4,
                              color='tab:blue' if variant == shown else 'tab:orange')
            else:
                axes.plot(x, means, color='0.85', linewidth=1, zorder=0)
        axes.set_title(label(shown), fontsize='medium', color='tab:blue')
        axes.grid(axis='y', alpha=0.3)
    for axes in grid[len(panels):]:
        axes.set_visible(False)
    for axes in grid[:len(panels)][-PANELS:]:  # also above an empty place
        axes.tick_params(labelbottom=True)
    figure.supxlabel(axis)
    figure.supylabel(label(AXES.get(metric, metric)))
    figure.suptitle(f'Blue: the variant in the title.  Orange: {label(against)}.  Grey: the others.', fontsize='medium')
    return figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('results', nargs='+', type=Path, help='results.csv of studies with the same tests')
    parser.add_argument('--only', nargs='+', default=[], metavar='NAME', help='variants to use; all if not given')
    parser.add_argument('--figure', type=Path, help='a .png file to draw the first metric to')
    parser.add_argument('--against', metavar='NAME', help='the variant that each panel of the figure shows; the first '
                        'variant if not given')
    parser.add_argument('--axis', default='test', help='label of the horizontal axis')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    rows = read_rows(args.results, args.only)
    metrics = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in COLUMNS]
    print(to_markdown(rows, metrics), *(best_table(rows, metric) for metric in metrics), sep='\n')
    if args.figure:
        variants = names_of(rows, 'variant')
        if args.against and args.against not in variants:
            raise UserError(f'--against is {args.against!r}, which the files do not have: choose from '
                            f'{", ".join(variants)}.')
        write_figure(args.figure, plot(rows, metrics[0], args.against or variants[0], args.axis))
