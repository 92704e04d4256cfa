"""Lists images, and writes files atomically: a file is complete or does not exist."""
import errno
import io
import os
import platform
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import torch
from PIL import Image

from .errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Numbers of errors of a full disk: no space, quota exceeded, and file size limit exceeded.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff')


def list_images(folder: str | Path) -> list[Path]:
    """Lists the images of a folder, sorted by name.

    Raises:
        UserError: If the folder does not exist or contains no image.
    """
    if not Path(folder).is_dir():
        raise UserError(f'folder {folder} does not exist: check the path.')
    paths = sorted(path for path in Path(folder).iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and (
        path.is_file() or path.is_symlink()))
    if not paths:
        raise UserError(f'folder {folder} has no image ({", ".join(IMAGE_SUFFIXES)}): choose a folder of images.')
    return paths


def near(path: str | Path) -> str:
    """Returns a path relative to the current folder, if it is below; an address is unchanged."""
    relative = os.path.relpath(path)
    return str(path) if '://' in str(path) or relative.startswith(os.pardir) else relative


def check_free(path: Path) -> None:
    """Raises a UserError if the file exists, or its folder does not exist."""
    if path.exists():
        raise UserError(f'{path} exists already: choose another file.')
    if not path.parent.is_dir():
        raise UserError(f'folder {path.parent} does not exist: create it, or choose another.')


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically, as UTF-8. Names of files that are not UTF-8 are escaped."""
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding='utf-8', errors='backslashreplace')


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a binary file atomically."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def write_figure(path: Path, figure: 'Figure', dpi: int = 120) -> None:
    """Writes a figure as PNG atomically."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, format='png', dpi=dpi)


def write_image(path: Path, image: np.ndarray, palette: Sequence[Sequence[int]] | None = None) -> None:
    """Writes an image atomically: as JPEG of quality 95 if the suffix is .jpg, else as PNG.

    Args:
        path: The file.
        image: `(H, W, 3)` RGB or `(H, W)` grey, uint8; also uint16 for a label map.
        palette: The RGB colour of each value of a label map; uint16 has none. Defaults to None: grey.
    """
    picture = Image.fromarray(image)
    if palette is not None and image.dtype == np.uint8:
        picture.putpalette(np.ravel(palette).tolist())
    with whole_file(path) as temporary:
        if path.suffix == '.jpg':
            picture.save(temporary, format='jpeg', quality=95)
        else:
            picture.save(temporary, format='png')


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes a checkpoint atomically: a dict of tensors as safetensors if the suffix says so, else with torch.save."""
    write_bytes(path, to_bytes(content, path.suffix == '.safetensors'))


def to_bytes(content: dict[str, Any], safetensors: bool = False) -> bytes:
    """Returns the content of the file that `write_checkpoint` writes, of torch.save by default."""
    if safetensors:
        from safetensors.torch import save  # an optional package
        return save({name: tensor.clone().contiguous() for name, tensor in content.items()})
    # On a full disk, torch.save to a file would raise a RuntimeError about something else.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds a folder for this process while it runs the `with` block. If the process dies, the system lets it go.

    The file `.lock` in the folder names the process. Other hosts see it if the file system has locks, as NFS does.

    Raises:
        UserError: If another process holds the folder.
        OSError: If `.lock` cannot be written, or is a link, which could lead to any file.
    """
    path, is_new = folder / '.lock', not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for _ in range(100):
            with open(path, 'a+', opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666)) as file:
                _lock(file, folder)
                if not _is_at(path, file):
                    continue  # its last holder has removed it since it was opened here
                try:
                    yield
                    return
                finally:
                    if _is_at(path, file):  # a server that lost this machine may have given the lock to another
                        path.unlink(missing_ok=True)
        raise OSError(errno.ENOLCK, 'its file system does not tell whether a lock is in place', str(path))
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _is_at(path: Path, file: TextIO) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    return False


def _lock(file: TextIO, folder: Path) -> None:
    import fcntl  # not on Windows, where files can still be read
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        raise UserError(f'{folder} is in use by {file.read()}: wait until that run ends, or choose another folder.'
                        ) from error
    file.truncate(0)
    print(f'process {os.getpid()} on {platform.node()}', end='', file=file, flush=True)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Gives errors of the `with` block the name of the file that is read or written; those of write() have none."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = str(path)
        raise


def remove_leftovers(folder: Path, *names: str) -> None:
    """Removes temporary files of killed processes, by the final names in a folder, which may have wildcards.

    No process may be writing one of these files.
    """
    for name in names:
        for leftover in folder.glob(f'{name}.*.tmp'):
            leftover.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a new, empty file in the same folder; at the end of the block, syncs it and renames it to `path`.

    Raises:
        OSError: If the file cannot be written; its filename is `path`.
    """
    # Nobody can plant a link at a name that nobody can guess; `touch` would not follow it.
    start = os.fsdecode(os.fsencode(path.name)[:200])  # names have at most 255 bytes
    temporary = path.with_name(f'{start}.{os.getpid()}.{secrets.token_hex(8)}.tmp')
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        with temporary.open('rb') as file:
            # Without fsync, a crash of the machine could leave an empty file. Some file systems report only here that
            # they are full.
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        if error.errno:  # errors of write() have no file name
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
