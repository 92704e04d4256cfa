"""Converts downloaded datasets to the layout that the configs expect."""
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from cpvt_mm.errors import UserError
from cpvt_mm.files import remove_leftovers, write_text

from .checking.findings import Finding, Kind
from .checking.images import decode


def read_image(path: Path, kind: Kind = Kind.IMAGE) -> Image.Image:
    """Reads an image of a download.

    Args:
        path: The file.
        kind: `Kind.IMAGE`, which must have 8 bits per channel, or `Kind.LABEL_MAP`. Defaults to `Kind.IMAGE`.

    Raises:
        UserError: If the file is missing or damaged, or an image has 16 bits per channel.
    """
    image = decode(str(path), kind)
    if isinstance(image, Finding):
        raise UserError(f'{path} {image.detail}: unpack the download again.')
    return image


@contextmanager
def unfinished_folder(root: Path, source: Path) -> Iterator[Path]:
    """Yields `<root>.unfinished`, with the files of an interrupted run; renames it to `root` if the block succeeds.

    Args:
        root: The folder to make.
        source: The download; a run continues only with the files of the same download.

    Raises:
        UserError: If `root` exists, or the unfinished folder is of another `source`.
    """
    if root.exists():
        raise UserError(f'{root} exists already: remove it, or choose another folder.')
    unfinished = root.with_name(f'{root.name}.unfinished')
    claim = unfinished / 'source.txt'
    if claim.exists() and claim.read_text() != str(source.resolve()):
        raise UserError(f'{unfinished} has files of {claim.read_text()}, not of {source.resolve()}: remove it, or '
                        'choose another folder.')
    unfinished.mkdir(parents=True, exist_ok=True)
    write_text(claim, str(source.resolve()))
    yield unfinished
    remove_leftovers(unfinished, '**/*')
    claim.unlink()
    unfinished.rename(root)
