"""Arguments and endings that several tools have."""
import functools
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import Any

from mmengine.config import DictAction

from .errors import UserError


class CfgOptions(DictAction):
    """mmengine's action for KEY=VALUE, with an error of argparse for what has no value."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: str | Sequence[Any] | None,
                 option_string: str | None = None) -> None:
        for option in values or ():
            if '=' not in option:
                parser.error(f'{option_string} {option} has no value: write {option}=VALUE')
        super().__call__(parser, namespace, values, option_string)


def add_cfg_options(parser: ArgumentParser) -> None:
    """Adds `--cfg-options`: a dict, empty if it is not given."""
    parser.add_argument('--cfg-options', nargs='+', action=CfgOptions, default={}, metavar='KEY=VALUE',
                        help='values of the config to override; keys are dotted')


def parse_sides(text: str) -> tuple[int, int]:
    """Reads one side of a square in pixels, such as '512', or two sides, such as '800x1216'.

    Raises:
        UserError: If it is neither.
    """
    match = re.fullmatch(r'([1-9]\d*)(?:x([1-9]\d*))?', text)
    if not match:
        raise UserError(f'size {text!r} is no size of an image: give the pixels of a side, such as 512, or of both, '
                        'such as 800x1216.')
    return int(match[1]), int(match[2] or match[1])


def check_least(args: Namespace, least: int, *names: str) -> None:
    """Checks numbers, or lists of them.

    Raises:
        UserError: If one is below `least`.
    """
    for name in names:
        values = getattr(args, name)
        for value in values if isinstance(values, (list, tuple)) else [values]:
            if value < least:
                raise UserError(f'--{name.replace("_", "-")} is {value}, but must be at least {least}.')


def resumable(main: Callable[[], None]) -> Callable[[], None]:
    """Decorates the `main` of a tool that goes on from what is there: Ctrl-C ends it with a sentence."""

    @functools.wraps(main)
    def wrapped() -> None:
        try:
            main()
        except KeyboardInterrupt:
            sys.exit('Interrupted: the same command goes on from here.')

    return wrapped
