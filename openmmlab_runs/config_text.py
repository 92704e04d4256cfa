r"""Writes the text of configs, so that mmengine reads the same values again.

mmengine replaces templates such as `{{ fileDirname }}` before Python reads a config, also in strings. No text from here
has two braces beside each other.
"""
import keyword
import math
import re
from collections.abc import Iterable
from textwrap import fill
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np

from .texts import printable

WIDTH = 120


def without_templates(source: str, brace: str = r'\x7b') -> str:
    """Returns source of values without templates; `brace` is how a string of its language writes a brace."""
    return re.sub(r'(?<=\{)\{', lambda _: brace, source)


def to_source(value: Any, indent: int = 0, used: int = 0) -> str:
    """Returns Python source for a value, whose first line begins with `indent` spaces, and has `used` other characters.
    """
    line = _one_line(value)
    if used + len(line) <= WIDTH or not isinstance(value, dict | list | tuple):
        return line
    begin, named, end = _parts(value)
    inner = indent + 4
    items = [f'{" " * inner}{name}{to_source(item, inner, inner + len(name) + 1)},\n' for name, item in named]
    return f'{begin}\n{"".join(items)}{" " * indent}{end}'


def _one_line(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        begin, named, end = _parts(value)
        comma = ',' if isinstance(value, tuple) and len(value) == 1 else ''
        return f'{begin}{", ".join(name + _one_line(item) for name, item in named)}{comma}{end}'
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, type | FunctionType | BuiltinFunctionType):  # registries take their names, too
        value = f'{value.__module__}.{value.__qualname__}'
    return without_templates(repr(value))


def _parts(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> tuple[str, list[tuple[str, Any]], str]:
    if not isinstance(value, dict):
        return ('[', [('', item) for item in value], ']') if isinstance(value, list) else (
            '(', [('', item) for item in value], ')')
    if all(map(_is_name, value)):
        return 'dict(', [(f'{key}=', item) for key, item in value.items()], ')'
    return '{', [(f'{_one_line(key)}: ', item) for key, item in value.items()], '}'


def _is_name(key: Any) -> bool:
    # Python would change names that are not ASCII.
    return isinstance(key, str) and key.isascii() and key.isidentifier() and not keyword.iskeyword(key)


def assignments(values: dict[str, Any]) -> str:
    """Returns Python source that assigns values of a config to their names."""
    return ''.join(f'{key} = {to_source(value, used=len(key) + 3)}\n' if _is_name(key) else
                   f'globals()[{_one_line(key)}] = {to_source(value)}\n' for key, value in values.items())


def comment(lines: Iterable[str]) -> str:
    """Returns a comment of Python for lines of text, with names from data, which cannot end it."""
    return without_templates('\n'.join(
        fill(printable(line), WIDTH, initial_indent='# ', subsequent_indent='# ') for line in lines))
