"""Data where it lies: a file backend of mmengine for object stores and archives, on fsspec.

Importing this module registers it. Paths of a config may then begin with `s3://`, `gs://`, `az://` or `abfs://`, or
name a file in an archive, `zip://train/0001.png::/data/nuclei.zip`.
"""
import errno
import os
import posixpath
import re
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from mmengine.fileio import BaseStorageBackend, FileClient, register_backend

from .errors import UserError, explain, first_line
from .files import what_is
from .waiting import TooLong, within

T = TypeVar('T')
# Scheme -> the package that fsspec needs for it.
STORES = dict(s3='s3fs', s3a='s3fs', gs='gcsfs', az='adlfs', abfs='adlfs')
ZIP = 'zip'
JOINED = re.compile(r'zip://(.*?)::(.+?\.zip)(/.*)?')  # OpenMMLab appends names after the archive
# Time limits in seconds: for a file, for each megabyte in it, and for listing a folder (10,000 names per second).
TRY, PER_MEGABYTE, LISTING = 60., 1., 600.
FINAL = (UserError, FileNotFoundError, IsADirectoryError, NotADirectoryError, NotImplementedError)  # passed on
# Errors that zipfile raises for damaged archives, encrypted files, and unknown compression.
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError)
# A file of at least LARGE bytes that was compressed to less than 1 / RATIO may be a zip bomb.
LARGE, RATIO = 2 ** 28, 100


@FileClient.register_backend('fsspec', prefixes=[prefix for prefix in (ZIP, *STORES) if prefix != 's3'], force=True)
@register_backend('fsspec', prefixes=[ZIP, *STORES], force=True)
class FsspecBackend(BaseStorageBackend):
    """Reads and writes files of object stores, and reads files of zip archives.

    The package of the store retries after network faults. The time limit for a file is 60 seconds plus 1 second for
    each megabyte, and 10 minutes for listing a folder. A store that does not answer, denies access or closes the
    connection raises a UserError. A damaged archive also raises a UserError. `options` are passed to fsspec's file
    system, for example `endpoint_url`. Set them as `backend_args` in a config, or as variables such as
    `FSSPEC_S3_ENDPOINT_URL`.
    """

    def __init__(self, **options: Any) -> None:
        # A copy of a config contains None instead of a secret. None would hide the secret in the environment.
        self.options = {name: value for name, value in options.items() if value is not None}

    def _try(self, path: str | Path, action: Callable[[Any, str], T], size: int | None = 0, lists: bool = False) -> T:
        """Runs an action with a path's file system and the path in it; `size` are bytes to write, None to read all."""
        try:
            files, inside = _open(str(path), self.options)
            if _scheme(path) == ZIP:
                return action(files, inside)
            return limited(str(path), lambda: action(files, inside),
                           lambda: (files.size(inside) or 0) if size is None else size, LISTING if lists else TRY)
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
        except ImportError as error:
            raise ImportError(f'{path} needs a package: pip install {STORES.get(_scheme(path))}.') from error
        except (*BROKEN, OSError) as error:
            # bz2's faults have no number. A place outside the file has EINVAL.
            of_system = isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)
            if _scheme(path) != ZIP or of_system or isinstance(error, UserError):
                raise
            raise UserError(f'{path} cannot be read ({first_line(error)}): the archive is damaged, or packed in a way '
                            'that Python does not read: pack it again with zip -0.') from error

    def get(self, filepath: str | Path) -> bytes:
        def read(files: Any, path: str) -> bytes:
            info = files.info(path) if _scheme(filepath) == ZIP else {}
            if info.get('size', 0) > max(LARGE, RATIO * info.get('compress_size', 0)):
                raise UserError(f'{filepath} may be a zip bomb: its {info["compress_size"]} bytes unpack to '
                                f'{info["size"]} bytes. Leave it out, or store it uncompressed.')
            return files.cat_file(path)

        return self._try(filepath, read, size=None)

    def get_text(self, filepath: str | Path, encoding: str = 'utf-8') -> str:
        return self.get(filepath).decode(encoding)

    def put(self, obj: bytes, filepath: str | Path) -> None:
        if _scheme(filepath) == ZIP:
            raise OSError(f'{filepath} is in an archive, which can only be read: write to a folder or a store.')
        self._try(filepath, lambda files, path: files.pipe_file(path, obj), len(obj))

    def put_text(self, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:
        self.put(obj.encode(encoding), filepath)

    def exists(self, filepath: str | Path) -> bool:
        return self._try(filepath, lambda files, path: files.exists(path))

    def isfile(self, filepath: str | Path) -> bool:
        return self._try(filepath, lambda files, path: files.isfile(path))

    def isdir(self, filepath: str | Path) -> bool:
        return self._try(filepath, lambda files, path: files.isdir(path))

    def remove(self, filepath: str | Path) -> None:
        self._try(filepath, lambda files, path: files.rm_file(path))

    def rmtree(self, dir_path: str | Path) -> None:
        self._try(dir_path, lambda files, path: files.rm(path, recursive=True))

    def join_path(self, filepath: str | Path, *filepaths: str | Path) -> str:
        return _in_order('/'.join([str(filepath).rstrip('/'), *(str(part).strip('/') for part in filepaths)]))

    @contextmanager
    def get_local_path(self, filepath: str | Path) -> Iterator[str]:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, PurePosixPath(_in_order(str(filepath)).partition('::')[0]).name)
            copy.write_bytes(self.get(filepath))
            yield str(copy)

    def list_dir_or_file(self, dir_path: str | Path, list_dir: bool = True, list_file: bool = True,
                         suffix: str | tuple[str, ...] | None = None, recursive: bool = False) -> Iterator[str]:
        def find(files: Any, path: str) -> list[tuple[str, bool]]:
            infos = files.find(path, withdirs=True, detail=True).values() if recursive else files.ls(path, detail=True)
            return [(PurePosixPath(info['name']).relative_to(path or '.').as_posix(), info['type'] == 'directory')
                    for info in infos if info['name'].strip('/') != path.strip('/')]

        if not self.exists(dir_path):  # which a store that hangs does not answer, sooner than the whole list
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(dir_path))
        for name, is_folder in self._try(dir_path, find, lists=True):
            if not any(part.startswith('.') for part in name.split('/')) and (
                    list_dir if is_folder else list_file and name.endswith(suffix or '')):
                yield name


def limited(path: str, action: Callable[[], T], size: Callable[[], int], seconds: float) -> T:
    """Runs an action on a store within `seconds`, and more for its `size` in bytes; its faults are UserErrors."""
    try:
        return within(path, action, seconds, lambda: PER_MEGABYTE * size() / 1e6)
    except FINAL:
        raise
    except Exception as error:  # each store has errors of its own
        reason = str(error) if isinstance(error, TooLong) else explain(error)
        if isinstance(error, PermissionError):
            raise UserError(f'{path} cannot be accessed ({reason}): check the keys and their permissions.') from error
        raise UserError(f'{path} cannot be read or written ({reason}): check the address, and whether this machine '
                        'reaches the store.') from error


def for_checkpoints(address: str) -> str:
    """Returns the address of a folder for checkpoints: mmengine's `FileClient` lets nobody replace its `s3://`."""
    return re.sub('^s3://', 's3a://', address)


def _scheme(path: str | Path) -> str:
    return str(path).partition('://')[0]


def _in_order(path: str) -> str:
    joined = JOINED.fullmatch(path)
    if not joined:
        return path
    inside, archive, more = joined.groups(default='')
    return f'zip://{f"{inside}{more}".strip("/")}::{archive}'


def _open(path: str, options: dict[str, Any]) -> tuple[Any, str]:
    import fsspec
    scheme, _, rest = _in_order(path).partition('://')
    if scheme != ZIP:
        return fsspec.filesystem(scheme, **options), rest  # which fsspec keeps for the process
    inside, _, archive = rest.partition('::')
    return _open_zip(os.path.abspath(archive)), posixpath.normpath(f'/{inside}').strip('/')


# Archives, by their paths: facts of a file that stay as long as it is not replaced or changed, the process that opened
# it, and its file system.
_OPENED: dict[str, tuple[tuple[int, ...], int, Any]] = {}


def _open_zip(path: str) -> Any:
    """Returns fsspec's file system of an archive, one for each process: forks would share the place in the file."""
    import fsspec
    if (fault := what_is(path)) and fault != 'does not exist':
        raise UserError(f'{path} {fault}: put the archive there.')
    status = os.stat(path)
    identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    known, process, files = _OPENED.get(path, (identity, 0, None))
    if known != identity:
        raise UserError(f'{path} was replaced or changed while it is in use: leave archives as they are during a run, '
                        'and start again.')
    if process != os.getpid():
        files = fsspec.filesystem(ZIP, fo=path)
        with open(path, 'rb') as file:
            stated = zipfile._EndRecData(file)[zipfile._ECD_ENTRIES_TOTAL]  # type: ignore[attr-defined]
        if stated != len(files.zip.NameToInfo):  # zipfile does not compare, and keeps one of each name
            raise zipfile.BadZipFile(f'{len(files.zip.NameToInfo)} names in its index for {stated} files')
        _OPENED[path] = identity, os.getpid(), files
    return files
