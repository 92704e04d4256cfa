"""A file of results that grows: what was interrupted, or is asked for more, goes on from what is there."""
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import UserError, first_line
from .files import write_text

Record = dict[str, Any]


class Results(Mapping[str, Record]):
    """Records by key in `results.json` of a folder, with the recipe that they were made by.

    The file is written whole with each record, by one process at a time.

    Args:
        folder: Made with the first record.
        recipe: Everything that decides the records. What JSON does not know counts as its text.

    Raises:
        UserError: If the folder holds results of another recipe, or `results.json` is something else.
    """

    def __init__(self, folder: Path, recipe: Mapping[str, Any]) -> None:
        self.path = folder / 'results.json'
        self.recipe: dict[str, Any] = json.loads(json.dumps(recipe, default=str))
        self._records: dict[str, Record] = {}
        if self.path.exists():
            was, self._records = _read(self.path)
            _check_same(was, self.recipe, self.path)

    def __getitem__(self, key: str) -> Record:
        return self._records[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def put(self, key: str, record: Record) -> None:
        """Adds or replaces a record, in the file too."""
        self._records[key] = record
        self.write()

    def write(self) -> None:
        """Writes the file. Alone, it claims a folder for the recipe before there is a record."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(dict(recipe=self.recipe, records=self._records), indent=1) + '\n')


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Record]]:
    try:
        content = json.loads(path.read_text())
        return content['recipe'], content['records']
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f'{path} holds no results of this tool ({type(error).__name__}: {first_line(error)}): name '
                        'another folder.') from error


def _check_same(was: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    before, after = dict(_leaves(was)), dict(_leaves(now))
    for key in {**before, **after}:
        if before.get(key) != after.get(key):
            raise UserError(f'{path} holds results with {key} = {before.get(key)!r}, not {after.get(key)!r}: name '
                            'another folder, or remove that one.')


def _leaves(value: object, key: str = '') -> Iterator[tuple[str, object]]:
    """Dotted keys and values of all that is inside of dicts and lists."""
    if isinstance(value, (dict, list)) and value:
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f'{key}.{name}' if key else str(name))
    else:
        yield key, value
