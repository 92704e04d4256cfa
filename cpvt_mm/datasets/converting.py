"""Converting a dataset as it is downloaded into a folder that configs read."""
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

from cpvt_mm.errors import UserError
from cpvt_mm.files import remove_leftovers
from cpvt_mm.results import Results

from .checking.findings import Finding, Kind
from .checking.images import decode


def read_image(path: Path, kind: Kind = Kind.IMAGE) -> Image.Image:
    """Reads an image of a download.

    Args:
        path: The file.
        kind: `Kind.IMAGE` (the default), which must have 8 bits a channel, or `Kind.LABEL_MAP`.

    Raises:
        UserError: If it is missing, damaged, or of 16 bits.
    """
    image = decode(str(path), kind)
    if isinstance(image, Finding):
        raise UserError(f'{path} {image.detail}: unpack the download again.')
    return image


@contextmanager
def unfinished_folder(root: Path, source: Path) -> Iterator[Path]:
    """Yields `<root>.unfinished`, with what an interrupted run left there; it becomes `root` if the block ends well.

    Args:
        root: The folder to make.
        source: The download. One conversion does not go on with another download's files.

    Raises:
        UserError: If `root` is there, or the unfinished folder is of another `source`.
    """
    if root.exists():
        raise UserError(f'{root} is there already: remove it, or name another folder.')
    unfinished = root.with_name(f'{root.name}.unfinished')
    claim = Results(unfinished, dict(source=source.resolve()))
    claim.write()
    yield unfinished
    remove_leftovers(unfinished, '**/*')
    claim.path.unlink()
    unfinished.rename(root)
