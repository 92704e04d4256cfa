"""Errors that a user of a tool can cause: one sentence, no traceback."""
import functools
import re
import sys
from collections.abc import Callable


class UserError(Exception):
    """What is wrong, with the value, and what to do, in one sentence."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its type where there is none."""
    return str(error).strip().split('\n')[0] or type(error).__name__


def exit_on_error(main: Callable[[], None]) -> Callable[[], None]:
    """Decorates a tool's `main`: what a user can cause ends it with a sentence and status 1."""

    @functools.wraps(main)
    def wrapped() -> None:
        try:
            main()
        except FileNotFoundError as error:
            # Registries and data loader workers wrap the error in text of their own; the path survives in it.
            path = re.search(r"No such file or directory: '(.+?)'", str(error))
            what = f'{path[1]} does not exist' if path else first_line(error)
            sys.exit(f'error: {what}: put the file there, or correct the path in the config or with --cfg-options '
                     '(data_root, ann_file, data_prefix).')
        except (UserError, FileExistsError, ImportError) as error:
            sys.exit(f'error: {error}')

    return wrapped
