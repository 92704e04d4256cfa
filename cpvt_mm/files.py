"""Writing files whole or not at all."""
import os
from pathlib import Path

from matplotlib.figure import Figure


def write_text(path: Path, text: str) -> None:
    """Writes a text file by way of a temporary one, so that no half of it is ever seen under its name."""
    temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    temporary.write_text(text)
    temporary.replace(path)


def write_figure(path: Path, figure: Figure, dpi: int = 120) -> None:
    """Writes a figure as PNG in the same way."""
    temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    figure.savefig(temporary, format='png', dpi=dpi)
    temporary.replace(path)
