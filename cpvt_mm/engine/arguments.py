"""Command-line arguments that training and testing share."""
import os
from argparse import ArgumentParser, Namespace

from cpvt_mm.cli import add_cfg_options


def add_run_arguments(parser: ArgumentParser) -> None:
    """Adds the arguments that all tools for training and testing share."""
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--work-dir', help="folder for logs and checkpoints (default: the config's, or "
                        'work_dirs/<name of the config>)')
    add_cfg_options(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                        help='program that starts the processes')
    parser.add_argument('--local-rank', '--local_rank', type=int, default=0, help='set by launchers')


def parse_run_arguments(parser: ArgumentParser) -> Namespace:
    """Parses the arguments, and sets LOCAL_RANK, from which mmengine reads the local rank."""
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args
