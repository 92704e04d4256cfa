"""Writing files whole or not at all."""
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from matplotlib.figure import Figure


def write_text(path: Path, text: str) -> None:
    """Writes a text file; no half of it is ever seen under its name."""
    with _whole(path) as temporary:
        temporary.write_text(text)


def write_figure(path: Path, figure: Figure, dpi: int = 120) -> None:
    """Writes a figure as PNG in the same way."""
    with _whole(path) as temporary:
        figure.savefig(temporary, format='png', dpi=dpi)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its name when it has been written."""
    temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    yield temporary
    temporary.replace(path)
