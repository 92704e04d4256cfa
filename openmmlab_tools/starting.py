"""Marks that a command parses its arguments. Packages then import nothing slow, so that help and errors in arguments
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


def parses_arguments(package: str) -> bool:
    """Returns whether arguments are being parsed, or will be by `python -m` of a package, which imports it at first.

    While Python looks for a module that `-m` names, `sys.argv` has `-m` in its place.
    """
    if getattr(sys, 'argv', [])[:1] != ['-m']:
        return _parsing
    return sys.orig_argv[-len(sys.argv)].removeprefix('-m') == package
