"""Errors that a user can cause, each a sentence without a traceback, and messages for the console of a run."""
import difflib
import functools
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from math import inf
from numbers import Integral, Real
from typing import Any

from .redaction import redact_text
from .texts import printable, printable_lines

SHOWN = 'is_shown'  # the attribute of log records that are for readers


class UserError(ValueError):
    """An error that the user can correct. The message says what is wrong, with the value, and what to do."""


class FileFault(UserError):
    """A fault of a file; `detail` is the rest of a sentence that begins with the file: what is wrong, and what to do.

    The message has a full stop at its end, and `detail` has none.
    """
    noun = ''  # before the name of the file in the message

    def __init__(self, file: str | os.PathLike[str], detail: str = '') -> None:
        # torch makes the error of a data loader's worker anew, from one text: its traceback and message.
        super().__init__(f'{self.noun}{file} {detail}.' if detail else str(file))
        self.file, self.detail = os.fspath(file), detail

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.detail)


class MissingFile(UserError, FileNotFoundError):
    """A file that the user named does not exist. The message is the same as for a UserError."""


def check_range(name: str, value: Any, least: float, most: float = inf, is_whole: bool = False) -> None:
    """Raises a UserError unless a value is a number from `least` to `most`; NaN and truth values are not."""
    is_number = isinstance(value, Integral if is_whole else Real) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        span = f'of at least {least}' if most == inf else f'from {least} to {most}'
        shown = value if isinstance(value, Real) else repr(value)
        raise UserError(f'{name} is {shown}, but must be a {"whole " * is_whole}number {span}: correct it.')


def check_path(name: str, value: object) -> None:
    """Raises a UserError unless a value is a path or an address."""
    if not isinstance(value, str | os.PathLike):
        raise UserError(f'{name} is {value!r}, but must be a path: correct it.')


def check_flag(name: str, value: object) -> None:
    """Raises a UserError unless a value is True or False."""
    if not isinstance(value, bool):
        raise UserError(f'{name} is {value!r}, but must be True or False: correct it.')


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its type if the message is empty."""
    return str(error).strip().split('\n')[0] or type(error).__name__


def explain(error: BaseException) -> str:
    """Returns the type of an error and the first line of its message."""
    return f'{type(error).__name__}: {first_line(error)}'


@contextmanager
def as_sentence(fault: str, todo: str, *passed: type[Exception]) -> Iterator[None]:
    """Converts errors in the `with` block to a UserError, which states the fault, the cause, and what to do. UserErrors
    and errors that are `passed` stay unchanged.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, (UserError, *passed)):
            raise
        raise UserError(f'{fault} ({explain(error)}): {todo}.') from error


def missing_file(error: FileNotFoundError) -> str | None:
    """Returns the path in an error's message, made absolute unless it is an address, or None."""
    # Registries and data loader workers add text to the message, but keep the path in it.
    path = re.search(r"No such file or directory: '(.+?)'", str(error))
    return path and (path[1] if '://' in path[1] else os.path.abspath(path[1]))


def sentence(error: UserError) -> str:
    """Returns the message of an error in one line, without the traceback that data loader workers put before it."""
    return printable(str(error).rpartition(f'\n{type(error).__module__}.{type(error).__qualname__}: ')[2].strip())


def _tell(error: Exception) -> str | None:
    """Returns the sentence that explains an error to a user; None for an error that needs a traceback."""
    if isinstance(error, UserError):
        return sentence(error)
    if isinstance(error, FileNotFoundError) and (path := missing_file(error)):
        return (f'{path} does not exist: put it there, or correct the path, which for data is in the config or '
                '--cfg-options (train_dataloader.dataset.data_root, and the same for val_ and test_dataloader).')
    if isinstance(error, OSError) and error.errno and error.filename:
        return (f'{os.fsdecode(error.filename)} cannot be used ({error.strerror or first_line(error)}): choose another '
                'path, or correct this path, its permissions or its disk.')
    return str(error) if isinstance(error, ImportError) else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a clause with the most similar known name, for the end of a message; '' if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f': did you mean {near[0]}' if near else ''


def for_readers(text: object) -> str:
    """Returns text for a terminal or a log, without secrets and without characters that would control a terminal."""
    return printable_lines(redact_text(str(text)))


def filter_for_readers(record: logging.LogRecord) -> bool:
    """Makes the messages of a logger, for its files and the console, those that `for_readers` returns."""
    record.msg, record.args = for_readers(record.getMessage()), ()
    return True


def say(*texts: object) -> None:
    """Prints texts at once, each in lines of its own; see `for_readers`. A terminal that is gone does not end a run."""
    with suppress(OSError):
        print(*map(for_readers, texts), sep='\n', flush=True)


def show(text: str) -> None:
    """Logs text that the console of a run prints, too. Other notes are in the log file only."""
    from mmengine.logging import MMLogger  # only a run needs it
    lines = f'\n{text}' if '\n' in text else text  # of a table, all begin at the left
    MMLogger.get_current_instance().info(for_readers(lines), extra={SHOWN: True})


def exit_on_error(main: Callable[[], None], interrupted: str = 'Interrupted.') -> Callable[[], None]:
    """Decorates a tool's `main`: on errors of users, and on Ctrl-C, it prints a sentence and exits with 1."""

    @functools.wraps(main)
    def wrapped() -> None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors='backslashreplace')  # as stderr, for file names that are not UTF-8
        try:
            main()
        except KeyboardInterrupt:
            sys.exit(interrupted)
        except Exception as error:
            told = _tell(error)
            if told is None:
                sys.excepthook = _print_for_readers  # Python calls it at the end
                raise
            sys.exit(for_readers(f'error: {told}'))

    return wrapped


def _print_for_readers(*error: Any) -> None:
    print(for_readers(''.join(traceback.format_exception(*error))), end='', file=sys.stderr)
