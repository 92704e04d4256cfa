"""Checks the datasets of a config: annotations, all images and label maps, and one sample with pipeline and model.

Measures classes, images and boxes, and suggests scale and anchors. Exits with 1 if there are errors.
"""
import argparse
import sys
from pathlib import Path

from openmmlab_tools.cli import add_cfg_options, command_parser


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--out', type=Path,
                        help='folder for findings.csv (all findings; the printed table has the first of each kind), '
                        'statistics.json, and samples.png (images with their labels)')
    add_cfg_options(parser)
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    from rich.console import Console

    from openmmlab_tools.data.config_datasets import plan_checks
    from openmmlab_tools.engine import load_config
    from openmmlab_tools.engine.console import readable_console
    from openmmlab_tools.own_data.checking import check_datasets
    console = Console()
    if not console.is_terminal:
        console.width = 10_000  # no cell of a table is cut
    with readable_console():
        plans = plan_checks(load_config(args.config, args.cfg_options))
        errors = check_datasets(plans, args.out, console)
    if errors:
        sys.exit(1)
