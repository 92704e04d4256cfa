"""Command-line arguments and exits that several tools share."""
import os
import re
import sys
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

from .compat.late_imports import late_imports
from .errors import UserError, did_you_mean, exit_on_error, say
from .starting import parsing

DICT = re.compile(r'\bdict\(|\{\s*[\'"]')
# For the `main` of a tool that can be resumed.
resumable = partial(exit_on_error, interrupted='Interrupted: run the same command again to continue.')


class CfgOptions(Action):
    """Parses KEY=VALUE like mmengine's `DictAction`; one without a value, or with a dict, is an argparse error."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: str | Sequence[Any] | None,
                 option_string: str | None = None) -> None:
        for option in values or ():
            if '=' not in option:
                parser.error(f'{option_string} {option} has no value: write {option}=VALUE')
            if DICT.search(option):  # mmengine would take it for text
                parser.error(f'{option_string} {option} has a dict, which this option does not accept: set each key, '
                             'such as default_hooks.early_stopping.type=EarlyStoppingHook, or change the config')
        from mmengine.config import DictAction  # imports torch
        try:
            DictAction(self.option_strings, self.dest)(parser, namespace, values, option_string)
        except (AssertionError, RecursionError):  # of mmengine, at brackets
            parser.error(f'{option_string} {" ".join(values or ())} has a list that cannot be read: write it as '
                         'KEY="[1,(2,3),text]"')


def run_package() -> None:
    """Runs the package that has the name of the program, as `python -m` does, but without importing it at first."""
    package = find_spec(Path(sys.argv[0]).stem)
    if not package or not package.origin:
        raise UserError(f'{sys.argv[0]} is not the name of a package: rename the program to its original name.')
    run_path(str(Path(package.origin).with_name('__main__.py')), run_name='__main__')


class Command(NamedTuple):
    """A command: the module that runs it, and what it does, in a few words."""
    module: str
    words: str


def start(module: str, package: str = '') -> None:
    """Runs the command in a module: `parse_args`, then `run`. In between, a package is imported that registers types.
    """
    @exit_on_error
    def run() -> None:
        with parsing():
            command = import_module(module)
            args = command.parse_args()
        with late_imports():
            if package:
                import_module(package)
            command.run(args)

    run()


def run_command(program: str, commands: Mapping[str, Command], begin: Callable[[str], object], version: str = ''
                ) -> None:
    """Begins the command that the first argument names, with its module. Without an argument, lists all commands.

    `--version` prints a `version`.
    """
    name, *options = sys.argv[1:] or ['--help']
    if name in ('-h', '--help'):
        width = max(map(len, commands))
        say(f'usage: {program} COMMAND [options]; {program} COMMAND --help prints the options'
            f'{", and --version the version" if version else ""}.',
            *(f'  {command:<{width}}  {" ".join(words.split())}' for command, (_, words) in commands.items()))
    elif version and name == '--version':
        say(f'{program} {version}')
    elif name in commands:
        sys.argv = [f'{program} {name}', *options]  # as argparse tells it
        begin(commands[name].module)
    else:
        raise UserError(f'{name!r} is not a command{did_you_mean(name, commands)}; there are {", ".join(commands)}.')


def command_parser(description: str | None) -> ArgumentParser:
    """Makes a parser whose program is `sys.argv[0]`, also for `python -m`, where Python 3.14 would take another."""
    return ArgumentParser(prog=os.path.basename(sys.argv[0]), description=description)


def add_cfg_options(parser: ArgumentParser) -> None:
    """Adds the option `--cfg-options`. Its value is a dict, which is empty if the option is not given."""
    parser.add_argument('--cfg-options', nargs='+', action=CfgOptions, default={}, metavar='KEY=VALUE',
                        help='values that replace values in the config, with dotted keys, such as '
                        'train_dataloader.batch_size=2')


def run_parser(description: str | None) -> ArgumentParser:
    """Makes a parser for the arguments of training and testing; see `parse_run_arguments`."""
    parser = command_parser(description)
    parser.add_argument('config', help='config file of mmdet, mmseg or mmpretrain')
    parser.add_argument('--work-dir', help="folder for logs and checkpoints (default: the config's, or "
                        'work_dirs/<name of the config>)')
    add_cfg_options(parser)
    parser.add_argument('--verbose', action='store_true', help='also print what mmengine writes to the log file')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                        help='program that started the processes, if there are several')
    parser.add_argument('--local-rank', '--local_rank', type=int, default=0, help='set by the launcher')
    return parser


def parse_run_arguments(parser: ArgumentParser) -> Namespace:
    """Parses the arguments, and sets LOCAL_RANK, from which mmengine reads the local rank."""
    args = parser.parse_args()
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return args
