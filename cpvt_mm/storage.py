"""Data where it lies: a file backend of mmengine for object stores and archives, on fsspec.

`import cpvt_mm` registers it. Paths of a config may then begin with `s3://`, `gs://`, `az://` or `abfs://`, and name a
file in an archive as `zip://train/0001.png::/data/nuclei.zip`, or in one of several shards as
`tar://train/0001.png::/data/nuclei-*.tar`.
"""
import errno
import functools
import glob
import os
import posixpath
import re
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from mmengine.fileio import BaseStorageBackend, FileClient, register_backend

from cpvt_mm.errors import UserError, first_line

T = TypeVar('T')
# Scheme -> the package that fsspec needs for it.
STORES = dict(s3='s3fs', s3a='s3fs', gs='gcsfs', az='adlfs', abfs='adlfs')
ARCHIVES = ('zip', 'tar')
# `scheme://inside::archive/more`, for which `scheme://inside/more::archive` is meant: OpenMMLab joins paths at the end.
JOINED = re.compile(r'(zip|tar)://(.*?)::(.+?\.(?:zip|tar(?:\.\w+)?))(/.*)?')
WAITS = (1, 4)  # seconds before another try
# Errors that another try does not mend.
FINAL = (UserError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)


# mmengine's own client for s3:// is not public; where it is installed, it stays.
PREFIXES = [scheme for scheme in (*ARCHIVES, *STORES) if scheme != 's3' or not find_spec('petrel_client')]


@FileClient.register_backend('fsspec', prefixes=[scheme for scheme in PREFIXES if scheme != 's3'], force=True)
@register_backend('fsspec', prefixes=PREFIXES, force=True)
class FsspecBackend(BaseStorageBackend):
    """Reads and writes files of object stores, and reads files of archives.

    A fault of the network is tried again, up to three times in all.

    Args:
        options: Options of fsspec's file system, such as `endpoint_url` for `s3://`. In a config they are
            `backend_args`; fsspec also reads them from variables, such as `FSSPEC_S3_ENDPOINT_URL`.

    Raises:
        ImportError: If the package for the scheme is not installed.
        UserError: If a tar file is compressed, has sparse files, or is so damaged that its files cannot be listed.
        OSError: If a file cannot be read or written, with its path.
    """

    def __init__(self, **options: Any) -> None:
        # A copy of a config has None for a secret, which would hide those of the environment.
        self.options = {name: value for name, value in options.items() if value is not None}

    def _try(self, path: str | Path, action: Callable[[Any, str], T]) -> T:
        """Runs an action with the file system of a path and the path in it."""
        for wait in (*WAITS, None):
            try:
                return action(*_open(str(path), self.options))
            except FileNotFoundError as error:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from error
            except FINAL:
                raise
            except ImportError as error:
                package = STORES.get(str(path).partition('://')[0])
                raise ImportError(f'{path} needs {package}: pip install {package}.') from error
            except Exception as error:  # each store has errors of its own
                if wait is None:
                    raise OSError(f'{path} cannot be read or written, after {len(WAITS) + 1} tries '
                                  f'({type(error).__name__}: {first_line(error)}).') from error
                time.sleep(wait)
        raise AssertionError

    def get(self, filepath: str | Path) -> bytes:
        """Returns the content of a file."""
        return self._try(filepath, lambda files, path: files.cat_file(path))

    def get_text(self, filepath: str | Path, encoding: str = 'utf-8') -> str:
        """Returns the text of a file."""
        return self.get(filepath).decode(encoding)

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Writes a file. An object store shows it when it is complete."""
        if str(filepath).partition('://')[0] in ARCHIVES:
            raise OSError(f'{filepath} is in an archive, which can only be read: write to a folder or a store.')
        self._try(filepath, lambda files, path: files.pipe_file(path, obj))

    def put_text(self, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:
        """Writes a file of text."""
        self.put(obj.encode(encoding), filepath)

    def exists(self, filepath: str | Path) -> bool:
        """Returns whether there is a file or folder."""
        return self._try(filepath, lambda files, path: files.exists(path))

    def isfile(self, filepath: str | Path) -> bool:
        """Returns whether there is a file."""
        return self._try(filepath, lambda files, path: files.isfile(path))

    def isdir(self, filepath: str | Path) -> bool:
        """Returns whether there is a folder."""
        return self._try(filepath, lambda files, path: files.isdir(path))

    def remove(self, filepath: str | Path) -> None:
        """Removes a file."""
        self._try(filepath, lambda files, path: files.rm_file(path))

    def rmtree(self, dir_path: str | Path) -> None:
        """Removes a folder with all files in it."""
        self._try(dir_path, lambda files, path: files.rm(path, recursive=True))

    def join_path(self, filepath: str | Path, *filepaths: str | Path) -> str:
        """Joins parts of a path; those of an archive before its name."""
        return _in_order('/'.join([str(filepath).rstrip('/'), *(str(part).strip('/') for part in filepaths)]))

    @contextmanager
    def get_local_path(self, filepath: str | Path) -> Iterator[str]:
        """Yields the path of a local copy, which is removed after the `with` block."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, PurePosixPath(_in_order(str(filepath)).partition('::')[0]).name)
            copy.write_bytes(self.get(filepath))
            yield str(copy)

    def list_dir_or_file(self, dir_path: str | Path, list_dir: bool = True, list_file: bool = True,
                         suffix: str | tuple[str, ...] | None = None, recursive: bool = False) -> Iterator[str]:
        """Yields relative paths of folders and files in a folder, without hidden ones, as mmengine's backends do."""
        def find(files: Any, path: str) -> list[tuple[str, bool]]:
            found = files.find(path, withdirs=True, detail=True).values() if recursive else files.ls(path, detail=True)
            return [(PurePosixPath(info['name']).relative_to(path or '.').as_posix(), info['type'] == 'directory')
                    for info in found if info['name'].strip('/') != path.strip('/')]

        for name, is_folder in self._try(dir_path, find):
            if not any(part.startswith('.') for part in name.split('/')) and (
                    list_dir if is_folder else list_file and name.endswith(suffix or '')):
                yield name


def for_checkpoints(address: str) -> str:
    """Returns the address of a folder for checkpoints: mmengine's `FileClient` lets nobody replace its `s3://`."""
    return re.sub('^s3://', 's3a://', address) if 's3' in PREFIXES else address


def _in_order(path: str) -> str:
    joined = JOINED.fullmatch(path)
    if not joined:
        return path
    scheme, inside, archive, more = joined.groups(default='')
    return f'{scheme}://{f"{inside}{more}".strip("/")}::{archive}'


@functools.lru_cache(maxsize=8)
def _open_archive(scheme: str, archive: str, process: int) -> Any:
    """Opens an archive and reads its index, once for each process: processes must not share an open file."""
    import fsspec

    if scheme == 'tar':
        paths = [archive] if os.path.isfile(archive) else sorted(glob.glob(archive))
        places = {name: place for path in paths for name, place in _places(path).items()}
        if paths:
            files = fsspec.filesystem('reference', fo=dict(version=1, refs=places), remote_protocol='file',
                                      skip_instance_cache=True)
            files.ls('')  # lists all folders, by which it then tells whether a path is one
            return files
    elif os.path.isfile(archive):
        return fsspec.filesystem(scheme, fo=archive)
    raise FileNotFoundError(archive)


def _places(path: str) -> dict[str, list[Any]]:
    """Returns where each file of a tar file is: the path of the tar file, the first byte, and the number of bytes."""
    places, links = dict[str, list[Any]](), dict[str, str]()
    try:
        with tarfile.open(path, 'r:') as shard:
            for member in shard:
                name = posixpath.normpath(member.name)
                if member.issparse():
                    raise UserError(f'{name} in {path} is a sparse file, which cannot be read: pack it without '
                                    '--sparse.')
                if member.isfile():
                    places[name] = [path, member.offset_data, member.size]
                elif member.islnk() or member.issym():
                    folder = posixpath.dirname(name) if member.issym() else ''
                    links[name] = posixpath.normpath(posixpath.join(folder, member.linkname))
    except tarfile.ReadError as error:
        raise UserError(f'{path} is not a whole tar file without compression ({first_line(error)}): pack it again.'
                        ) from error
    for name, target in links.items():
        for _ in range(40):  # links to links, which may be in a circle
            target = links.get(target, target)
        if target in places:
            places[name] = places[target]
    return places


def _open(path: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Returns the file system of a path, and the path in it."""
    import fsspec

    scheme, _, rest = _in_order(path).partition('://')
    if scheme not in ARCHIVES:
        return fsspec.filesystem(scheme, **options), rest  # which fsspec keeps for the process
    inside, _, archive = rest.partition('::')
    return _open_archive(scheme, os.path.abspath(archive), os.getpid()), inside
