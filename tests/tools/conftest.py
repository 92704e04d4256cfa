"""Fixtures for tests of several tools: data to write and to damage, and results to read."""
import csv
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Run = Callable[..., str]
Capture = pytest.CaptureFixture


class Exploit:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ('hacked',)


def change_annotations(file: Path, change: Callable[[dict], object]) -> None:
    coco = json.loads(file.read_text())
    change(coco)
    file.write_text(json.dumps(coco))


def cut(path: Path) -> None:
    """Truncates a file, as an interrupted copy does."""
    path.write_bytes(path.read_bytes()[:-50])


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    image.convert(mode or image.mode).save(path)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob('*') if path.is_file()}


def times(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob('*')}


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline='') as file:
        return list(csv.DictReader(file))
