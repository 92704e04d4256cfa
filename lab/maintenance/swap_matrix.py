"""Swaps the backbone of all configs of mmdet and mmseg, and builds the models.

For each family of configs, it runs a training step and a prediction with the first config that builds, on the CPU.
Writes a markdown table. Run it again to continue from the results in the work dir.
"""
import argparse
from pathlib import Path

from lab.stock_configs.matrix import LIBRARIES, open_results, run_matrix, to_markdown
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import exit_on_error
from openmmlab_runs.files import write_text


@exit_on_error
@resumable
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--libraries', nargs='+', choices=LIBRARIES, default=LIBRARIES, help='libraries of configs')
    parser.add_argument('--families', nargs='+', metavar='NAME', help='folders of configs to use; all if not given')
    parser.add_argument('--jobs', type=int, default=2, help='configs at a time; each uses a core')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/swap_matrix'), help='folder for the results')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/swap_matrix.md'), help='the table')
    args = parser.parse_args()
    text = to_markdown(run_matrix(args.libraries, args.families, args.jobs, open_results(args.work_dir)))
    write_text(args.out, text)
    print(text)


if __name__ == '__main__':
    main()
