"""Errors that a user of a tool can cause: one sentence, no traceback."""
import functools
import sys
from collections.abc import Callable


class UserError(Exception):
    """What is wrong, with the value, and what to do, in one sentence."""


def exit_on_error(main: Callable[[], None]) -> Callable[[], None]:
    """Decorates a tool's `main`: a UserError or a missing or existing file ends it with a sentence and status 1."""

    @functools.wraps(main)
    def wrapped() -> None:
        try:
            main()
        except (UserError, FileExistsError, FileNotFoundError) as error:
            sys.exit(f'error: {error}')

    return wrapped
