"""Computes from the CSV files of the studies whether they agree with the paper on PEG, and writes the tables of a page.

A table of the page follows the line `<!-- numbers: python -m lab peg_claims (NAME) -->`. The verdict on a statement is
*same* if it holds for each seed of one side against each seed of the other side, *opposite* if it holds for none, and
else *cannot tell*.
"""
import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.claims import Claim, Values, by_cell
from lab.commands.compare import names_of, spread
from lab.peg_claims import CORNER, PYRAMID, STATEMENTS
from lab.results import read_csv
from openmmlab_tools.errors import UserError, as_sentence, exit_on_error
from openmmlab_tools.files import write_text
from openmmlab_tools.texts import markdown_table

ROOT = Path(__file__).parents[2]
STREETS, QUARTERS = 'peg_ablations_camvid.csv', 'peg_ablations_toy.csv'
PYRAMID_STREETS = 'position_encodings_camvid_native.csv'
CORNER_CLASSIFIER = 'corner_classifier.csv'


def claims_table(claims: Sequence[Claim], studies: Mapping[str, Values]) -> str:
    """Makes a table with a row for each claim: the values of all seeds and the verdict of each study, by its name.

    Raises:
        UserError: If a study lacks a value of a claim.
    """

    def cells(claim: Claim) -> list[str]:
        row = [claim.name, claim.statement, claim.section, claim.paper]
        for name, values in studies.items():
            verdict = claim.verdict(values)
            if verdict is None:
                raise UserError(f'the study of {name} has no values for {claim.name!r}, {claim.statement}: train these '
                                'variants with compare.')
            higher, lower = (', '.join(f'{value:.2f}' for value in side) for side in claim.sides(values))
            row += [f'{higher} against {lower}', verdict]
        return row

    return markdown_table(['name', 'statement', 'section', 'paper', *(
        column for name in studies for column in (name, 'verdict'))], map(cells, claims))


def rows_table(rows: Sequence[Mapping[str, str]], metric: str = 'mIoU') -> str:
    """Makes a table with a row for each variant of a study, and a column for each test: mean ± half of the range."""
    values, tests = by_cell(rows, metric), names_of(rows, 'test')

    def cells(variant: str) -> list[str]:
        seeds = [list(values[variant, test].values()) for test in tests]
        row = [variant, str(len(seeds[0]))]
        for mean, half in map(spread, seeds):
            row.append(f'{mean:.1f}' if half is None else f'{mean:.1f}±{half:.1f}')
        return row

    return markdown_table(['variant', 'seeds', *tests], map(cells, names_of(rows, 'variant')))


def tables_of(folder: Path) -> dict[str, str]:
    """Returns the tables by their names; `folder` contains the CSV files."""
    streets, quarters, pyramid, corner = (
        read_csv(folder / name) for name in (STREETS, QUARTERS, PYRAMID_STREETS, CORNER_CLASSIFIER))
    studies = dict(streets=by_cell(streets), quarters=by_cell(quarters))
    return {
        'statements': claims_table(STATEMENTS, studies),
        'pyramid': claims_table(PYRAMID, dict(streets=by_cell(pyramid))),
        'streets': rows_table(streets),
        'quarters': rows_table(quarters),
        'corner': claims_table(CORNER, dict(accuracy=by_cell(corner, 'accuracy'))),
        'corner rows': rows_table(corner, 'accuracy'),
    }


def fill(page: str, tables: Mapping[str, str]) -> str:
    """Replaces the table after the marker of each name; raises a UserError if a marker is missing."""
    for name, table in tables.items():
        marker = f'<!-- numbers: python -m lab peg_claims ({name}) -->\n'
        if page.count(marker) != 1:
            raise UserError(f'the page has {page.count(marker)} tables {name!r}, but must have one: write the line '
                            f'{marker.strip()} above it.')
        before, after = page.split(marker)
        page = before + marker + table + re.sub(r'\A(?:\|.*\n)*', '', after)
    return page


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('page', type=Path, nargs='?', default=ROOT / 'docs/results/ablations.md',
                        help='page with the tables; the CSV files lie beside it (default: %(default)s)')
    page = parser.parse_args().page
    tables = tables_of(page.parent)
    with as_sentence(f'{page} cannot be read', 'pass a page with the tables'):
        text = page.read_text(encoding='utf-8')
    write_text(page, fill(text, tables))
    print(tables['statements'])
