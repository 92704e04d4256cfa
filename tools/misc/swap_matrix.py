"""Swaps the backbone of every config that mmdet and mmseg ship, and builds the models.

With one config of every algorithm's family that builds it trains a step and predicts, on the CPU. Writes a markdown
table; goes on from what is in the work dir when it is run again.
"""
import argparse
import sys
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cpvt_mm.errors import exit_on_error
from cpvt_mm.files import write_text
from cpvt_mm.swap.matrix import LIBRARIES
from cpvt_mm.swap.matrix_report import to_markdown
from cpvt_mm.swap.matrix_runs import check_all, try_all


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--libraries', nargs='+', choices=LIBRARIES, default=LIBRARIES, help='whose configs')
    parser.add_argument('--families', nargs='+', metavar='NAME', help='folders of configs to take; all if not given')
    parser.add_argument('--jobs', type=int, default=2, help='configs at a time; each takes a core')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/swap_matrix'), help='folder of what is done')
    parser.add_argument('--out', type=Path, default=Path('docs/swap_matrix.md'), help='the table')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    columns = TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    try:
        with Progress(*columns) as progress:
            records = check_all(args.libraries, args.families, args.jobs, args.work_dir, progress)
            trials = try_all(records, args.jobs, args.work_dir, progress)
    except KeyboardInterrupt:
        sys.exit('Interrupted: the same command goes on from here.')
    text = to_markdown(records, trials)
    write_text(args.out, text)
    print(text)


if __name__ == '__main__':
    main()
