"""Lists images, and writes files atomically: a file is complete or does not exist."""
import errno
import io
import json
import os
import platform
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from filelock import FileLock, Timeout
from PIL import Image

from .choices import IMAGE_SUFFIXES as IMAGE_SUFFIXES
from .errors import UserError, first_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

T = TypeVar('T')
META = 'openmmlab_meta'  # a key in the header of a safetensors file

# Numbers of errors of a full disk: no space, quota exceeded, and file size limit exceeded.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# How `whole_file` ends the name of a file until it is complete; torch.hub adds a suffix of its own.
TEMPORARY = re.compile(r'\.([0-9]{1,10})\.[0-9a-f]{16}\.tmp(\.[0-9a-f]{32}\.partial)?\Z')



def list_images(folder: str | Path) -> list[Path]:
    """Lists the images of a folder, sorted by name; raises a UserError if there is no folder or no image."""
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


def what_is(path: str | Path) -> str:
    """Returns '' for a file that can be read, and else a clause such as 'is a folder' or 'does not exist'."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return 'is a link to a file that does not exist' if os.path.islink(path) else 'does not exist'
    except (OSError, ValueError) as error:  # a link in a circle, or a path with a zero
        return f'cannot be read ({first_line(error)})'
    kinds = {stat.S_IFREG: '', stat.S_IFDIR: 'is a folder', stat.S_IFIFO: 'is a named pipe (FIFO), not a file',
             stat.S_IFSOCK: 'is a socket, not a file'}
    return kinds.get(stat.S_IFMT(mode), 'is a device, not a file')


def unique_name(name: str, taken: set[str]) -> str:
    """Returns the first unused name among `name`, `name_2`, `name_3` and so on, and marks it as used, in place."""
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f'{name}_{number}'
    taken.add(unique)
    return unique


def check_free(path: Path) -> None:
    """Raises a UserError if the file exists, or its folder does not exist."""
    if path.exists():
        raise UserError(f'{path} exists already: choose another file.')
    if not path.parent.is_dir():
        raise UserError(f'folder {path.parent} does not exist: create it, or choose another.')


def read_state(path: Path, parse: Callable[[str], T], todo: str) -> T | None:
    """Reads a small text file that a run has left, and returns what `parse` returns for it; None if there is no file.
    Raises a UserError with the path and `todo` if the file cannot be read or parsed, for example because it is cut.
    """
    fault = what_is(path)
    if fault == 'does not exist':
        return None
    try:
        if not fault:
            return parse(path.read_text('utf-8'))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        fault = f'cannot be used ({first_line(error)})'
    raise UserError(f'{path} {fault}: {todo}.')


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically, as UTF-8. Names of files that are not UTF-8 are escaped."""
    write_bytes(path, text.encode('utf-8', 'backslashreplace'))


def write_bytes(path: Path, content: bytes) -> None:
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def write_figure(path: Path, figure: 'Figure', dpi: int = 120) -> None:
    """Writes a figure as PNG atomically."""
    from .fonts import in_any_script  # matplotlib takes long to import
    with in_any_script(figure), whole_file(path) as temporary:
        figure.savefig(temporary, format='png', dpi=dpi)


def write_image(path: Path, image: np.ndarray, palette: Sequence[Sequence[int]] | None = None) -> None:
    """Writes `(H, W, 3)` RGB or `(H, W)`, uint8 or uint16: as JPEG of quality 95 if the suffix is .jpg, else as PNG.
    `palette` has the RGB colour of each value of a label map; uint16 has none. Defaults to None: grey.
    """
    picture = Image.fromarray(image)
    if palette is not None and image.dtype == np.uint8:
        # With fewer colours, Pillow would write fewer bits for each pixel, and lose larger values such as 255.
        picture.putpalette(np.ravel(palette).tolist() + [0] * 3 * (256 - len(palette)))
    with whole_file(path) as temporary:
        picture.save(temporary, format='jpeg' if path.suffix == '.jpg' else 'png', quality=95)


def to_bytes(content: dict[str, Any], safetensors: bool = False, meta: Mapping[str, Any] = {}) -> bytes:
    """Returns the bytes of a checkpoint in the format of torch.save, or of a dict of tensors in the format of
    safetensors.

    A safetensors file has `meta`, which must be plain, in its header, as JSON under the key `META`.
    """
    if safetensors:
        from safetensors.torch import save
        header = {META: json.dumps(meta)} if meta else None
        return save({name: tensor.clone().contiguous() for name, tensor in content.items()}, header)
    buffer = io.BytesIO()  # on a full disk, torch.save to a file would raise a RuntimeError about something else
    torch.save(content, buffer)
    return buffer.getvalue()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Holds a folder for this process in the `with` block; raises a UserError if another process holds it. If this
    process dies, the folder is free again. The file `.lock` in the folder is locked, and `.holder` names the process.
    The same process can hold a folder twice, for example after a run that failed.
    """
    path, holder, is_new = folder / '.lock', folder / '.holder', not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=0, thread_local=False, is_singleton=True)
    try:
        try:
            lock.acquire()
        except Timeout as error:
            who = 'another process'
            with suppress(UserError):
                who = read_state(holder, str.strip, '') or who
            raise UserError(f'{folder} is in use by {who}: wait until that run ends, or choose another folder.'
                            ) from error
        except (OSError, NotImplementedError) as error:
            if getattr(error, 'filename', None):
                raise
            raise UserError(f'{folder} is on a file system that cannot lock files ({first_line(error)}): choose a '
                            'folder of a local disk.') from error
        try:
            write_text(holder, f'process {os.getpid()} on {platform.node()}')
            yield
        finally:
            with suppress(OSError):
                if lock.lock_counter == 1:
                    holder.unlink()
                    path.unlink()  # whoever has opened it sees that it is gone, and makes a new one; not on Windows
            lock.release()
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Adds the name of the file to errors in the `with` block, because errors of `write()` do not contain it."""
    try:
        yield
    except OSError as error:
        if error.errno:
            error.filename = str(path)
        raise


def remove_leftovers(folder: Path, *names: str) -> None:
    """Removes temporary files that `whole_file` left in a folder because its process was killed. `names` are the final
    names of the files, and may contain wildcards.

    Files with the number of this process are removed as well, because a process with the same number was killed in
    another container. On a file system that many machines share, `held` separates the processes that still run.
    """
    for name in names:
        for path in folder.glob(f'{name}.*.tmp*'):
            match = TEMPORARY.search(path.name)
            if match and stat.S_ISREG(path.lstat().st_mode) and not _is_another(int(match[1])):
                path.unlink(missing_ok=True)


def _is_another(number: int) -> bool:
    """Returns whether another process that lives has a number."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is another user's
        pass
    return number != os.getpid()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a new file in the same folder; then syncs it and renames it to `path`, the filename of any OSError."""
    # Nobody can plant a link at a name that nobody can guess; `touch` would not follow it.
    start = os.fsdecode(os.fsencode(path.name)[:200])  # names have at most 255 bytes
    temporary = path.with_name(f'{start}.{os.getpid()}.{secrets.token_hex(8)}.tmp')
    try:
        with named(path):
            temporary.touch(exist_ok=False)
            yield temporary
            with temporary.open('rb') as file:
                # Without fsync, a crash of the machine could leave an empty file. Some file systems report only here
                # that they are full.
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
