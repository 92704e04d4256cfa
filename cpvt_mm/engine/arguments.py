"""Command-line arguments that training and testing share."""
import os
from argparse import ArgumentParser, Namespace

from cpvt_mm.cli import add_cfg_options


def add_run_arguments(parser: ArgumentParser) -> None:
    """Adds what every tool that runs a config takes."""
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--work-dir', help="folder for logs and checkpoints (default: the config's, or "
                        'work_dirs/<name of the config>)')
    add_cfg_options(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                        help='who starts the processes')
    parser.add_argument('--local-rank', '--local_rank', type=int, default=0, help='set by launchers')


def parse_run_arguments(parser: ArgumentParser) -> Namespace:
    """Parses, and passes the local rank on the way mmengine reads it."""
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args
