"""Checks the datasets of a config: annotations, all images and label maps, and one sample with pipeline and model.

Measures classes, images and boxes, and suggests scale and anchors. Exits with 1 if there are errors.
"""
import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

from rich.console import Console

import cpvt_mm  # noqa: F401  # so that configs may name its classes without its scope
from openmmlab_runs.cli import add_cfg_options
from openmmlab_runs.data.checking import check_dataset
from openmmlab_runs.engine import load_config
from openmmlab_runs.errors import exit_on_error


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--out', type=Path,
                        help='folder for findings.csv (all findings; the table has the first of each), statistics.json '
                        'and samples.png (painted samples)')
    add_cfg_options(parser)
    args = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console.width = 10_000  # no cell of a table is cut
    if check_dataset(load_config(args.config, args.cfg_options), args.out, console):
        sys.exit(1)


if __name__ == '__main__':
    main()
