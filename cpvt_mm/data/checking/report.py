"""Writes findings as a table and as CSV."""
import csv
from collections.abc import Sequence
from io import StringIO

from rich.markup import escape
from rich.table import Column, Table

from .findings import Finding, Kind

EXAMPLES = 3


def to_table(findings: Sequence[Finding]) -> Table:
    """Makes a table with a row for each kind of finding: its name, the number of findings, and the first of them."""
    table = Table('what', 'how many', Column('the first', overflow='fold'), show_lines=True)
    for kind in Kind:
        found = [finding for finding in findings if finding.kind is kind]
        if found:
            examples = [f'{finding.file} {finding.detail}' for finding in found[:EXAMPLES]]
            more = [f'and {len(found) - EXAMPLES} more'] if len(found) > EXAMPLES else []
            what = kind.value if found[0].is_error else f'{kind.value} (a note)'
            table.add_row(what, str(len(found)), escape('\n'.join([*examples, *more])))
    return table


def to_csv(findings: Sequence[tuple[str, Finding]]) -> str:
    """Writes all findings, each with the splits of its dataset, as CSV."""
    text = StringIO()
    writer = csv.writer(text)
    writer.writerow(('split', 'severity', 'what', 'file', 'detail'))
    writer.writerows((split, 'error' if finding.is_error else 'note', finding.kind.value, finding.file, finding.detail)
                     for split, finding in findings)
    return text.getvalue()
