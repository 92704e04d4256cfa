r"""Writes text from data for those who read it again: terminals, shells, HTML and Markdown, and matplotlib."""
import os
import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from reprlib import Repr

# Control characters of terminals except the tab, line separators, marks that change the direction of text, and
# surrogates from file names that are not UTF-8.
CONTROLS = re.compile('[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]')
# Characters that begin an entity, a tag, a cell, code, mathematics, a link or an emphasis.
MARKUP = re.compile(r'[&<>"|`$\[\]\\*~]|(?<![^\W_])_|_(?![^\W_])')
LONGEST_LABEL = 60
_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def printable(text: object) -> str:
    r"""Returns text in one line for a terminal: a control character becomes an escape such as `\x1b` or `\n`."""
    return CONTROLS.sub(lambda match: repr(match[0])[1:-1], str(text))


def printable_lines(text: object) -> str:
    return '\n'.join(map(printable, str(text).split('\n')))


def shell(*parts: str | Path) -> str:
    """Returns a command for a shell. Control characters are in bash's form `$'...'`, and no `Path` is an option."""
    return ' '.join(_quoted(f'./{part}' if isinstance(part, Path) and str(part).startswith('-') else str(part))
                    for part in parts)


def _quoted(part: str) -> str:
    if not CONTROLS.search(part):
        return shlex.quote(part)
    # Bytes, because bash has no escape for surrogates.
    return "$'" + re.sub(rb"[^ -&(-\[\]-~]", lambda match: b'\\x%02x' % match[0][0], os.fsencode(part)).decode() + "'"


def markup(text: object) -> str:
    """Returns text for HTML and Markdown, also for a cell of a table, in which it means itself."""
    return MARKUP.sub(lambda match: f'&#{ord(match[0])};', printable(text))


def markdown_table(header: Collection[object], rows: Iterable[Iterable[object]]) -> str:
    """Returns a Markdown table of cells that mean themselves; ends with a newline."""
    head, *body = (f'| {" | ".join(map(markup, cells))} |\n' for cells in (header, *rows))
    return ''.join([head, '|---' * len(header) + '|\n', *body])


def figure_text(text: object) -> str:
    """Returns text for a figure of matplotlib, without mathematics, which begins at a dollar sign."""
    return printable_lines(text).replace('$', r'\$')


def label(name: object) -> str:
    """Returns a name for matplotlib, in a line, shortened, with a space before `_`, as legends leave out `_name`."""
    text = printable(name)
    if len(text) > LONGEST_LABEL:
        text = f'{text[:LONGEST_LABEL // 2]}...{text[-LONGEST_LABEL // 2:]}'
    return figure_text(' ' * text.startswith('_') + text)


def shown(value: object) -> str:
    """Returns a value for a message, shortened where it is long, deep or endless."""
    return 'null' if value is None else _REPR.repr(value)


def some(names: Sequence[str], limit: int = 5) -> str:
    """Lists at most `limit` names, separated by commas, and the number of further names."""
    return ', '.join(names[:limit]) + (f' and {len(names) - limit} more' if len(names) > limit else '')


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun, which has an s unless the number is 1."""
    return f'{number} {noun}' + 's' * (number != 1)


def told(items: Sequence[object], clause: str, end: str = '.') -> list[str]:
    """Returns a sentence with the number of what is found and the first of it; none if nothing is."""
    return [f'{len(items)} {clause}, such as {items[0]}{end}'] if items else []
