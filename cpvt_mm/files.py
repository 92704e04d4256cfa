"""Writing files whole or not at all."""
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from .errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_free(path: Path) -> None:
    """Raises a UserError if there is such a file, or no folder for it."""
    if path.exists():
        raise UserError(f'{path} exists already: choose another file.')
    if not path.parent.is_dir():
        raise UserError(f'folder {path.parent} does not exist: create it, or choose another.')


def write_text(path: Path, text: str) -> None:
    """Writes a text file; no half of it is ever seen under its name."""
    with whole_file(path) as temporary:
        temporary.write_text(text)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a binary file in the same way."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def write_figure(path: Path, figure: 'Figure', dpi: int = 120) -> None:
    """Writes a figure as PNG in the same way."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, format='png', dpi=dpi)


def write_image(path: Path, image: np.ndarray) -> None:
    """Writes an image, `(H, W, 3)` RGB or `(H, W)` grey, uint8, in the same way; as JPEG if so named, else as PNG."""
    with whole_file(path) as temporary:
        if path.suffix == '.jpg':
            Image.fromarray(image).save(temporary, format='jpeg', quality=95)
        else:
            Image.fromarray(image).save(temporary, format='png')


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes a checkpoint of torch.save in the same way; where the name ends in .safetensors, a dict of tensors."""
    with whole_file(path) as temporary:
        if path.suffix == '.safetensors':
            from safetensors.torch import save  # for those who use it
            # Its own save_file makes files that others may not read.
            temporary.write_bytes(save({name: tensor.clone().contiguous() for name, tensor in content.items()}))
        else:
            # Through a file object: given a path, torch writes the temporary's name into the file.
            with temporary.open('wb') as file:
                torch.save(content, file)


def remove_leftovers(folder: Path, *names: str) -> None:
    """Removes files that killed processes had not finished to write.

    Args:
        folder: The folder of the files.
        names: The files that were to be written; may have wildcards. No process may be writing one of them.
    """
    for name in names:
        for leftover in folder.glob(f'{name}.*.tmp'):
            leftover.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a file beside `path`, which takes its name when it is written and on the disk.

    Raises:
        OSError: If it cannot be written; names `path`.
    """
    temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    try:
        yield temporary
        with temporary.open('rb') as file:
            # Else the name could survive a crash of the machine without the content. Some file systems say only here
            # that they are full.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno:  # writing alone tells no name
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
