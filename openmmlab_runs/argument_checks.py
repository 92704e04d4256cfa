"""Checks arguments of functions and options of commands before there is a model: their types, and ranges of numbers."""
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .errors import UserError
from .texts import printable, shown


def check_number(name: str, value: object, least: float, most: float = inf, whole: bool = True) -> None:
    """Raises a UserError unless a value is a number, whole by default, from `least` to `most`."""
    kind: Any = Integral if whole else Real  # of which typeshed knows no order
    span = f'of at least {least}' if most == inf else f'from {least} to {most}'
    _check(not isinstance(value, bool) and isinstance(value, kind) and least <= value <= most, name, value,
           f'a {"whole " * whole}number {span}')


def check_flag(name: str, value: object) -> None:
    _check(isinstance(value, bool), name, value, 'True or False')


def check_path(name: str, value: object) -> None:
    _check(isinstance(value, str | Path) and str(value) != '' and '\0' not in str(value), name, value, 'a path')


def _check(is_right: bool, name: str, value: object, what: str) -> None:
    if not is_right:
        raise UserError(f'{name} is {printable(shown(value))}, but must be {what}: correct it.')
