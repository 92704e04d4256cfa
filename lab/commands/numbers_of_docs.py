"""Lists each table of numbers in README and docs with the command that makes it.

The line above a table contains the command: `<!-- numbers: COMMAND -->`; or `<!-- numbers: FILE of commit COMMIT -->`,
of a program that is not here any more; or `<!-- numbers: not measured, SOURCE -->`.
"""
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ('README*.md', 'docs/**/*.md', 'configs/**/README.md', 'projects/**/README.md')
NUMBER = re.compile(r'(?<![\w.:-])(?!\d{4}\.\d{5})\d+\.\d+')  # but not the number of an arXiv paper
MARKER = re.compile(r'<!-- numbers: (.+) -->')


class Table(NamedTuple):
    """A table of numbers: its page, the line of its header, and the source of its numbers; None without a marker."""
    page: str
    line: int
    source: str | None


def find_tables(page: str, text: str) -> Iterator[Table]:
    """Finds the tables of a page that contain a number with a decimal point."""
    before, table = '', []
    for number, line in enumerate([*text.splitlines(), ''], start=1):
        if line.startswith('|'):
            table.append(line)
            continue
        if any(NUMBER.search(row) for row in table[2:]):
            marker = MARKER.fullmatch(before)
            yield Table(page, number - len(table), marker[1] if marker else None)
        before, table = line, []


def tables() -> list[Table]:
    pages = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern)) if '_build' not in page.parts]
    return [table for page in pages for table in find_tables(str(page.relative_to(ROOT)), page.read_text())]


def main() -> None:
    tables_of_pages = tables()
    for table in tables_of_pages:
        print(f'{table.page}:{table.line}\n    {table.source or "NOTHING SAYS WHERE THESE NUMBERS ARE FROM"}')
    sys.exit(any(table.source is None for table in tables_of_pages))
