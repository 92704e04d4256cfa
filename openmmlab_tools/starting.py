"""Whether arguments of a command are being parsed. Packages then import nothing that takes long, so that help, and what
is wrong with a word, are there at once.
"""
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_parsing = False


@contextmanager
def parsing() -> Iterator[None]:
    """Is for the import of a command and the parsing of its arguments."""
    global _parsing
    _parsing = True
    try:
        yield
    finally:
        _parsing = False


def parses_arguments() -> bool:
    """Returns whether arguments are being parsed, or will be: `python -m package` imports the package at first, and
    `sys.argv` says so while Python looks for its module.
    """
    return _parsing or getattr(sys, 'argv', [])[:1] == ['-m']
