"""Prints which variants of studies are best in each test, after their results.csv.

The best has the highest mean of its seeds. Beside it stand the variants whose range of seeds meets that of the best.
Variants of one seed have no range, and are left out.
"""
import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import TypeAlias

from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.texts import markdown_table

Scores: TypeAlias = dict[str, dict[str, list[float]]]  # of each test, and in it of each variant, one for each seed


def read_scores(files: Iterable[Path], metric: str) -> Scores:
    """Reads a metric from results of studies; several files may have the same tests."""
    scores: Scores = defaultdict(lambda: defaultdict(list))
    for path in files:
        for row in csv.DictReader(path.read_text('utf-8').splitlines()):
            if metric not in row:
                raise UserError(f'{path} has no {metric}: choose one of {", ".join(row)}.')
            scores[row['test']][row['variant']].append(float(row[metric]))
    return scores


def best_of(scores: Mapping[str, list[float]]) -> list[str]:
    """Returns the variants of a test that are best, the one with the highest mean first."""
    several = sorted((name for name, own in scores.items() if len(own) > 1), key=lambda name: -mean(scores[name]))
    return [name for name in several if max(scores[name]) >= min(scores[several[0]])]


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('results', nargs='+', type=Path, help='results.csv of studies with the same tests')
    parser.add_argument('--metric', default='mIoU', help='a column, such as coco/bbox_mAP (default: mIoU)')
    args = parser.parse_args()
    scores = read_scores(args.results, args.metric)
    print(markdown_table(['test', 'best', 'mean', 'as good within the seeds'], [
        [test, best[0], f'{mean(found[best[0]]):.3g}', ', '.join(best[1:])]
        for test, found in scores.items() if (best := best_of(found))]))


if __name__ == '__main__':
    main()
