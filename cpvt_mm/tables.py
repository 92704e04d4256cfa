"""Rows as text."""
import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]


def to_csv(rows: Sequence[Row]) -> str:
    """Comma-separated rows under the names of all columns; a row need not have every one."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list({name: None for row in rows for name in row}), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are text already; ends with a newline."""
    head, *body = (f'| {" | ".join(cells)} |\n' for cells in (header, *rows))
    return ''.join([head, '|---' * len(header) + '|\n', *body])
