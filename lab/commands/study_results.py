"""Prints the table of results.csv files of studies, and which variants are best in each test; can draw them.

Several files may have the same variants and tests, with other seeds. The best has the highest mean of its seeds. Beside
it stand the variants whose range of seeds meets that of the best. Variants of one seed have no range, and are no best.
"""
import argparse
import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean

from lab.commands.compare import COLUMNS, names_of, plot, to_markdown, values_of
from lab.results import Row
from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.files import write_figure
from openmmlab_runs.texts import markdown_table


def read_rows(files: Iterable[Path], only: Sequence[str] = ()) -> list[Row]:
    """Reads the rows of files as `compare` makes them, of some variants in this order, or of all."""
    rows: list[Row] = []
    for path in files:
        for found in csv.DictReader(path.read_text('utf-8').splitlines()):
            metrics = {name: float(value) for name, value in found.items() if name not in COLUMNS and value}
            seconds = found.get('seconds_per_iteration')
            rows.append(dict(variant=found['variant'], seed=int(found['seed']), test=found.get('test', ''),
                             parameters=int(found['parameters']), **metrics,
                             seconds_per_iteration=float(seconds) if seconds else None))
    names = names_of(rows, 'variant')
    if missing := set(only) - set(names):
        raise UserError(f'no results of {", ".join(sorted(missing))}: choose from {", ".join(names)}.')
    return [row for name in only or names for row in rows if row['variant'] == name]


def best_of(scores: Mapping[str, Sequence[float]]) -> list[str]:
    """Returns the variants of a test that are best, the one with the highest mean first."""
    several = sorted((name for name, own in scores.items() if len(own) > 1), key=lambda name: -mean(scores[name]))
    return [name for name in several if max(scores[name]) >= min(scores[several[0]])]


def best_table(rows: Sequence[Row], metric: str) -> str:
    """Makes a table with a line for each test: the best, its mean, and those that are as good."""
    scores = {test: {variant: values_of(rows, variant, test, metric) for variant in names_of(rows, 'variant')}
              for test in names_of(rows, 'test')}
    return markdown_table([f'test, {metric}', 'best', 'mean', 'as good within the seeds'], [
        [test, best[0], f'{mean(found[best[0]]):.3g}', ', '.join(best[1:])]
        for test, found in scores.items() if (best := best_of(found))])


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('results', nargs='+', type=Path, help='results.csv of studies with the same tests')
    parser.add_argument('--only', nargs='+', default=[], metavar='NAME', help='variants to use; all if not given')
    parser.add_argument('--figure', type=Path, help='a .png file to draw')
    args = parser.parse_args()
    rows = read_rows(args.results, args.only)
    metrics = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in COLUMNS]
    print(to_markdown(rows, metrics), *(best_table(rows, metric) for metric in metrics), sep='\n')
    if args.figure:
        write_figure(args.figure, plot(rows, metrics))
