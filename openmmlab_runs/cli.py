"""Command-line arguments and exits that several tools share."""
import functools
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from mmengine.config import DictAction


class CfgOptions(DictAction):
    """Parses KEY=VALUE like mmengine's `DictAction`; an option without a value is an argparse error."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: str | Sequence[Any] | None,
                 option_string: str | None = None) -> None:
        for option in values or ():
            if '=' not in option:
                parser.error(f'{option_string} {option} has no value: write {option}=VALUE')
        super().__call__(parser, namespace, values, option_string)


def command_parser(description: str | None) -> ArgumentParser:
    """Makes a parser whose program is `sys.argv[0]`, also for `python -m`, where Python 3.14 would take another."""
    return ArgumentParser(prog=os.path.basename(sys.argv[0]), description=description)


def add_cfg_options(parser: ArgumentParser) -> None:
    """Adds the option `--cfg-options`. Its value is a dict, which is empty if the option is not given."""
    parser.add_argument('--cfg-options', nargs='+', action=CfgOptions, default={}, metavar='KEY=VALUE',
                        help='values of the config to override; keys are dotted')


def run_parser(description: str | None) -> ArgumentParser:
    """Makes a parser of what training and testing take; see `parse_run_arguments`."""
    parser = command_parser(description)
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--work-dir', help="folder for logs and checkpoints (default: the config's, or "
                        'work_dirs/<name of the config>)')
    add_cfg_options(parser)
    parser.add_argument('--verbose', action='store_true', help='print all that mmengine logs, not only to the log file')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                        help='program that starts the processes')
    parser.add_argument('--local-rank', '--local_rank', type=int, default=0, help='set by launchers')
    return parser


def parse_run_arguments(parser: ArgumentParser) -> Namespace:
    """Parses the arguments, and sets LOCAL_RANK, from which mmengine reads the local rank."""
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args


def resumable(main: Callable[[], None]) -> Callable[[], None]:
    """Decorates the `main` of a tool that can be resumed: on Ctrl-C, it exits with a message that says so."""

    @functools.wraps(main)
    def wrapped() -> None:
        try:
            main()
        except KeyboardInterrupt:
            sys.exit('Interrupted: run the same command again to continue.')

    return wrapped
