"""Runs a training step and a prediction with stock configs, and the operators of mmcv that this environment has.

It takes the first config of each family, and others that have layers of mmcv which that one lacks. Writes a markdown
table. Run it again to continue from the results in the work dir.
"""
import argparse
from pathlib import Path

from lab.stock_configs.matrix import LIBRARIES
from lab.stock_configs.operators import run_configs, to_markdown
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
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/operators'), help='folder for the results')
    args = parser.parse_args()
    text = to_markdown(run_configs(args.libraries, args.families, args.jobs, args.work_dir))
    write_text(args.work_dir / 'operators.md', text)
    print(text)


if __name__ == '__main__':
    main()
