"""Checks of arguments that several analysis tools share."""
import re
from argparse import ArgumentTypeError, Namespace

from openmmlab_runs.errors import UserError


def parse_sides(text: str) -> tuple[int, int]:
    """Parses the pixels of a square's side, such as '512', or of two sides in their order, such as '800x1216'."""
    match = re.fullmatch(r'([1-9]\d*)(?:x([1-9]\d*))?', text)
    if not match:
        raise ArgumentTypeError(f'size {text!r} is not an image size: give the pixels of one side, such as 512, or of '
                                'both sides, such as 800x1216.')
    return int(match[1]), int(match[2] or match[1])


def check_least(args: Namespace, least: int, *names: str) -> None:
    """Raises a UserError if an argument, a number or a list of numbers, is below `least`."""
    for name in names:
        values = getattr(args, name)
        for value in values if isinstance(values, (list, tuple)) else [values]:
            if value < least:
                raise UserError(f'--{name.replace("_", "-")} is {value}, but must be at least {least}.')
