"""Writes rows as CSV and markdown."""
import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

Row = dict[str, Any]


def to_csv(rows: Sequence[Row]) -> str:
    """Returns rows as CSV with a header of all columns; missing values are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list({name: None for row in rows for name in row}), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a markdown table of text cells; ends with a newline."""
    head, *body = (f'| {" | ".join(cells)} |\n' for cells in (header, *rows))
    return ''.join([head, '|---' * len(header) + '|\n', *body])
