"""The file of all rows, which a run that was interrupted goes on from."""
import csv
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from cpvt_mm.errors import UserError
from cpvt_mm.files import write_text
from cpvt_mm.tables import Row, to_csv

from .candidates import Candidate
from .settings import Setting

WORDS = ('candidate', 'mode', 'dtype', 'device', 'failure')
WHOLE_NUMBERS = ('height', 'width', 'batch_size', 'threads')
COLUMNS = ('candidate', 'mode', 'height', 'width', 'batch_size', 'dtype', 'threads', 'device', 'min_s', 'median_s',
           'memory_mb', 'gflops', 'gemm_gflops_per_s', 'share_of_peak', 'max_abs_diff', 'compile_s', 'failure')


class Results:
    """Rows of one run, in `results.csv` of a folder; what they were measured on and as is in `run.json`.

    Args:
        folder: Made if it is not there.
        run: What is the same for all rows.
        resume: Whether to go on from the rows that are there.

    Raises:
        UserError: If there are rows and `resume` is off, or they are of another run.
    """

    def __init__(self, folder: Path, run: dict[str, Any], resume: bool) -> None:
        self.path, self.run = folder / 'results.csv', run
        self.rows: list[Row] = []
        if self.path.exists():
            if not resume:
                raise UserError(f'{self.path} is there already: add --resume to go on from it, or name another '
                                '--out-dir.')
            if not (folder / 'run.json').exists():
                raise UserError(f'{self.path} has no run.json beside it, which tells what its rows are of: name '
                                'another --out-dir.')
            was = json.loads((folder / 'run.json').read_text())
            changed = [key for key in run if was.get(key) != run[key]]
            if changed:
                raise UserError(f'{self.path} is of a run with {changed[0]} {was.get(changed[0])!r}, not '
                                f'{run[changed[0]]!r}: name another --out-dir.')
            with self.path.open(newline='') as file:
                self.rows = [_read(row) for row in csv.DictReader(file)]
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / 'run.json', json.dumps(run, indent=1) + '\n')

    def has(self, candidates: Sequence[Candidate], setting: Setting) -> bool:
        """Whether there is a row for each candidate under a setting."""
        found = {row['candidate'] for row in self.rows if setting_of(row) == setting}
        return found >= {str(candidate) for candidate in candidates}

    def put(self, rows: Sequence[Row]) -> None:
        """Adds the rows of a group, in the place of any that there were, and writes the file."""
        settings = {setting_of(row) for row in rows}
        self.rows = [row for row in self.rows if setting_of(row) not in settings]
        self.rows += [{name: row.get(name) for name in COLUMNS} for row in rows]
        write_text(self.path, to_csv(self.rows))


def setting_of(row: Row) -> Setting:
    """What a row was measured under."""
    return Setting(**{field.name: row[field.name] for field in fields(Setting)})


def _read(row: dict[str, str]) -> Row:
    kinds = {**dict.fromkeys(WORDS, str), **dict.fromkeys(WHOLE_NUMBERS, int)}
    return {name: kinds.get(name, float)(value) if value else None for name, value in row.items()}
