"""What tests of several tools share: data to damage, and results to read."""
import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]


@pytest.fixture
def data(toy_shapes: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(toy_shapes, tmp_path / 'data')


def change_annotations(file: Path, change: Callable[[dict], object]) -> None:
    coco = json.loads(file.read_text())
    change(coco)
    file.write_text(json.dumps(coco))


def cut(path: Path) -> None:
    """Truncates a file, as an interrupted copy does."""
    path.write_bytes(path.read_bytes()[:-50])


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline='') as file:
        return list(csv.DictReader(file))
