"""Stores each result in a file at once, so that a tool can continue after an interruption, and writes tables."""
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openmmlab_tools.config_walk import leaves
from openmmlab_tools.errors import UserError, as_sentence
from openmmlab_tools.files import write_figure, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = dict[str, Any]
Row = dict[str, Any]
MARKERS = 'os^Dv<>P*Xp'  # of lines; one more than there are colours, so that no two of 110 lines look alike


class Results(dict[str, Record]):
    """Maps keys to records, and stores them in `results.json` of a folder, with the recipe that produced them.

    Each new record rewrites the file. Only one process at a time may write it. Values that JSON does not support are
    stored as strings. A UserError is raised if the folder has results of another recipe.
    """

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self.path = folder / 'results.json'
        self.recipe: dict[str, Any] = json.loads(json.dumps(recipe, default=str))
        if self.path.exists():
            was, records = _read(self.path)
            self.update(records)
            before, after = dict(leaves(was)), dict(leaves(self.recipe))
            for key in {**before, **after}:
                if repr(before.get(key)) != repr(after.get(key)):  # NaN does not equal itself
                    raise UserError(f'{self.path} has results with {key} = {before.get(key)!r}, not '
                                    f'{after.get(key)!r}: choose another folder, or remove that one.')

    def put(self, key: str, record: Record) -> None:
        """Adds or replaces a record, also in the file."""
        self[key] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(dict(recipe=self.recipe, records=self), indent=1) + '\n')


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Record]]:
    with as_sentence(f'{path} has no results of this tool', 'choose another folder'):
        content = json.loads(path.read_text(encoding='utf-8'))
        return content['recipe'], content['records']


def write_report(path: Path, rows: Sequence[Row], table: str, figure: 'Figure') -> str:
    """Writes rows, their table and their plot as .csv, .md and .png files of one name; returns what to print."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path.with_suffix('.csv'), to_csv(rows))
    write_text(path.with_suffix('.md'), table)
    write_figure(path.with_suffix('.png'), figure)
    return f'{table}\nAlso in {path.parent}: {path.stem}.csv, {path.stem}.md, {path.stem}.png'


def read_csv(path: Path) -> list[dict[str, str]]:
    """Reads the rows of a CSV file with a header; a UserError if it cannot be read."""
    with as_sentence(f'{path} cannot be read', 'run its study with compare'), path.open(encoding='utf-8') as file:
        return list(csv.DictReader(file))


def to_csv(rows: Sequence[Row]) -> str:
    """Returns rows as CSV with a header of all columns; missing values are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list({name: None for row in rows for name in row}), lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
