"""Errors that a user can cause: one sentence, no traceback."""
import functools
import re
import sys
from collections.abc import Callable


class UserError(Exception):
    """An error whose message is one sentence: the fault, with the value, and the remedy."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type if the message is empty."""
    return str(error).strip().split('\n')[0] or type(error).__name__


def missing_file(error: FileNotFoundError) -> str | None:
    """Returns the path in an error's message, if it names one."""
    # Registries and data loader workers wrap the error in text of their own; the path survives in it.
    path = re.search(r"No such file or directory: '(.+?)'", str(error))
    return path[1] if path else None


def sentence(error: UserError) -> str:
    """Returns the sentence of an error without the traceback that data loader workers put before it."""
    return str(error).rpartition(f'\n{UserError.__module__}.{UserError.__qualname__}: ')[2].strip()


def exit_on_error(main: Callable[[], None]) -> Callable[[], None]:
    """Decorates a tool's `main`: errors that a user can cause end it with a sentence and status 1."""

    @functools.wraps(main)
    def wrapped() -> None:
        try:
            main()
        except FileNotFoundError as error:
            path = missing_file(error)
            what = f'{path} does not exist' if path else first_line(error)
            sys.exit(f'error: {what}: put the file there, or correct the path in the config or with --cfg-options '
                     '(data_root, ann_file, data_prefix).')
        except UserError as error:
            sys.exit(f'error: {sentence(error)}')
        except (FileExistsError, ImportError) as error:
            sys.exit(f'error: {error}')

    return wrapped
