"""Checks arguments of functions and options of commands before there is a model: their types, and ranges of numbers."""
from math import inf
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from .data.findings import shown
from .errors import UserError
from .texts import printable


def check_number(name: str, value: object, least: float, most: float = inf, whole: bool = True) -> None:
    """Raises a UserError unless a value is a number, whole by default, from `least` to `most`."""
    kind: Any = Integral if whole else Real  # of which typeshed knows no order
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        span = f'of at least {least}' if most == inf else f'from {least} to {most}'
        _refuse(name, value, f'a {"whole " * whole}number {span}')


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        _refuse(name, value, 'True or False')


def check_path(name: str, value: object) -> None:
    if not isinstance(value, str | Path) or not str(value) or '\0' in str(value):
        _refuse(name, value, 'a path')


def _refuse(name: str, value: object, what: str) -> None:
    raise UserError(f'{name} is {printable(shown(value))}, but must be {what}: correct it.')
