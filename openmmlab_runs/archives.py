"""Reads files of tar and zip archives where they lie, and checks that an archive is whole and stays the same."""
import functools
import glob
import hashlib
import json
import os
import posixpath
import re
import struct
import tarfile
import zipfile
import zlib
from typing import Any, BinaryIO, NamedTuple

from fsspec import AbstractFileSystem

from .errors import UserError, first_line
from .files import what_is

# The last file of a shard: a JSON object with `set`, a hash of the names and sizes of all files of all shards, and
# `members`, the size and SHA-256 of each file of this shard.
MEMBERS = '.members.json'
SHARD = re.compile(r'(.+)-(\d{5})-of-(\d{5})\.tar')
END_OF_TAR = bytes(1024)
# Bytes of the record at the end of a zip file, and of the one before each file.
END_OF_ZIP, ZIP_FILE = 22, 30
# A file of at least so many bytes that was packed to less than 1 / RATIO is a trap: data hardly shrinks to a tenth.
LARGE, RATIO = 2 ** 28, 100


class Place(NamedTuple):
    """Where a file of an archive is: `packed` bytes from byte `start` of `archive`, which become `size` bytes."""
    archive: str
    start: int
    packed: int
    size: int
    method: int = zipfile.ZIP_STORED  # its compression, a number of `zipfile`
    crc: int | None = None  # its CRC-32; None if it is not known
    sha256: str | None = None  # in hexadecimal; None if it is not known


Identity = tuple[int, ...]  # facts of a file that stay as long as it is not replaced or changed


class Archive(AbstractFileSystem):
    """The files of archives, each checked when it is read, as they were when the index was read, also after a fork."""

    cachable = False

    def __init__(self, places: dict[str, Place], identities: dict[str, Identity]) -> None:
        super().__init__()
        self.places, self.identities = places, identities
        self.folders: dict[str, dict[str, dict[str, Any]]] = {'': {}}
        for name, place in places.items():
            info = dict(name=name, size=place.size, type='file')
            while name:
                name, child = posixpath.dirname(name), name
                is_known = name in self.folders
                self.folders.setdefault(name, {})[child] = info
                if is_known:
                    break
                info = dict(name=name, size=0, type='directory')

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        if not path.strip('/'):
            return dict(name='', size=0, type='directory')
        path = _normal(path)
        if path not in (inside := self.folders.get(posixpath.dirname(path), {})):
            raise FileNotFoundError(path)
        return inside[path]

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        info = self.info(path)
        found = [info] if info['type'] == 'file' else [*self.folders[info['name']].values()]
        return found if detail else [one['name'] for one in found]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        """Returns the content of a file; raises a UserError if it or the archive is not what the index says."""
        name = self.info(path)['name']
        if name not in self.places:
            raise FileNotFoundError(path)
        place = self.places[name]
        with open(place.archive, 'rb') as file:
            try:
                file.seek(place.start)
                content = file.read(place.packed)
            except OSError as error:
                raise UserError(f'{place.archive} cannot be read ({error.strerror}): check the disk.') from error
            if _identity(file) != self.identities[place.archive]:  # it may also have changed while it was read
                raise UserError(f'{place.archive} was replaced or changed while it is in use: leave archives as they '
                                'are during a run, and start again.')
        try:
            if place.method == zipfile.ZIP_DEFLATED:
                content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, place.size + 1)
            if len(content) != place.size:
                raise ValueError(f'it has {len(content)} bytes, not {place.size}')
            if place.crc is not None and zlib.crc32(content) != place.crc:
                raise ValueError('its CRC-32 is not that of the index')
            if place.sha256 and hashlib.sha256(content).hexdigest() != place.sha256:
                raise ValueError(f'its SHA-256 is not that of {MEMBERS}')
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise UserError(f'{name} in {place.archive} is damaged ({first_line(error)}): pack the archive again.'
                            ) from error
        return content[start:end]


def _normal(path: str) -> str:
    return posixpath.normpath(path).strip('/')


@functools.cache  # a new index would not be compared with the first one
def open_archive(scheme: str, pattern: str) -> Archive:
    """Reads the index of a zip file, or of tar files; a UserError if it is damaged, lacks a shard or has a file twice.
    """
    paths = [pattern] if os.path.lexists(pattern) else sorted(glob.glob(pattern)) if scheme == 'tar' else []
    if not paths:
        raise FileNotFoundError(pattern)
    _check_complete(pattern, paths)
    places: dict[str, Place] = {}
    identities: dict[str, Identity] = {}
    sets: dict[str, str] = {}
    for path in paths:
        if fault := what_is(path):
            raise UserError(f'{path} {fault}: put the archive there.')
        with open(path, 'rb') as file:
            identities[path] = _identity(file)
            found = _places_of_zip(file, path) if scheme == 'zip' else _places_of_tar(file, path)
            if scheme == 'tar' and MEMBERS in found:
                found, sets[path] = _listed(file, found)
            if _identity(file) != identities[path]:
                raise UserError(f'{path} was changed while its index was read: wait until it is complete.')
        twice = next((name for name in found if name in places), None)
        if twice:
            raise UserError(f'{twice} is in {places[twice].archive} and in {path}: correct the pattern {pattern}, or '
                            'remove one of them.')
        places |= found
    if len(set(sets.values())) > 1:
        one, other = [next(path for path in sets if sets[path] == name) for name in [*dict.fromkeys(sets.values())][:2]]
        raise UserError(f'{one} and {other} are not of one data set: pack all shards again.')
    return Archive(places, identities)


def _identity(file: BinaryIO) -> Identity:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def shard_name(prefix: str, number: int, count: int) -> str:
    """Returns the path of a shard, which also tells the number of all."""
    return f'{prefix}-{number:05}-of-{count:05}.tar'


def _check_complete(pattern: str, paths: list[str]) -> None:
    """Raises a UserError if a shard is not among the paths, by the number of shards in the names of the others."""
    for prefix, count in {match.groups()[::2] for path in paths if (match := SHARD.fullmatch(path))}:
        names = [shard_name(prefix, number, int(count)) for number in range(int(count))]
        missing = [name for name in names if name not in paths]
        if missing:
            raise UserError(f'{pattern} has {len(names) - len(missing)} of {len(names)} shards, {missing[0]} is not '
                            'among them: put all shards there, or correct the pattern.')


def _places_of_tar(file: BinaryIO, path: str) -> dict[str, Place]:
    places, links = dict[str, Place](), dict[str, str]()
    try:
        with tarfile.open(fileobj=file, mode='r:') as shard:
            for member in shard:
                name = _normal(member.name)
                if member.issparse():
                    raise UserError(f'{name} in {path} is a sparse file, which cannot be read: pack it without '
                                    '--sparse.')
                if member.isfile():
                    places[name] = Place(path, member.offset_data, member.size, member.size)
                elif member.islnk() or member.issym():
                    folder = posixpath.dirname(name) if member.issym() else ''
                    links[name] = posixpath.normpath(posixpath.join(folder, member.linkname))
            end = shard.offset
    except UserError:
        raise
    except (tarfile.TarError, ValueError, OverflowError, RecursionError, OSError) as error:
        raise UserError(f'{path} is not a whole tar file without compression ({first_line(error)}): pack it again.'
                        ) from error
    # To Python, a damaged header is the end, and so is a block of zeros in the middle.
    file.seek(end)
    if file.read(len(END_OF_TAR)) != END_OF_TAR or any(block.strip(b'\0') for block in iter(
            lambda: file.read(2 ** 20), b'')):
        raise UserError(f'{path} is damaged or cut: after {len(places)} files, at byte {end} of '
                        f'{os.fstat(file.fileno()).st_size}, comes neither a file nor the end. Copy or pack it again.')
    for name, target in links.items():
        for _ in range(40):  # links to links, which may be in a circle
            target = links.get(target, target)
        if target in places:
            places[name] = places[target]
    return places


def _listed(file: BinaryIO, places: dict[str, Place]) -> tuple[dict[str, Place], str]:
    """Compares a shard with its list; returns the files with their hashes, and the hash of the whole set."""
    own = places[MEMBERS]
    file.seek(own.start)
    try:
        content = json.loads(file.read(own.size))
        members = {name: (int(size), str(sha256)) for name, (size, sha256) in content['members'].items()}
        found = {name: place for name, place in places.items() if name != MEMBERS}
        sizes, there = ({name: size for name, (size, _) in members.items()},
                        {name: place.size for name, place in found.items()})
        if sizes == there:
            return {name: place._replace(sha256=members[name][1]) for name, place in found.items()}, str(content['set'])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f'{MEMBERS} in {own.archive} is damaged ({first_line(error)}): pack the shards again.'
                        ) from error
    differs = [name for name in {**sizes, **there} if sizes.get(name) != there.get(name)]
    raise UserError(f'{own.archive} does not have the files of its list {MEMBERS}: {len(differs)} of {len(members)} '
                    f'are missing, new or of another size, such as {differs[0]}: pack the shards again.')


def _places_of_zip(file: BinaryIO, path: str) -> dict[str, Place]:
    places: dict[str, Place] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            members, comment = archive.infolist(), len(archive.comment)
        file.seek(-END_OF_ZIP - comment, os.SEEK_END)
        number, = struct.unpack('<H', file.read(END_OF_ZIP)[10:12])
        if number not in (len(members), 0xFFFF):  # the latter: it is told elsewhere
            raise zipfile.BadZipFile(f'its index has {len(members)} files, not {number}')
        for member in members:
            if not member.is_dir():
                places[_normal(member.filename)] = _place_in_zip(file, path, member)
    except UserError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, EOFError, OSError
            ) as error:
        raise UserError(f'{path} is not a whole zip file ({first_line(error)}): pack it again.') from error
    return places


def _place_in_zip(file: BinaryIO, path: str, member: zipfile.ZipInfo) -> Place:
    file.seek(member.header_offset)
    record = file.read(ZIP_FILE)
    name_size, more = struct.unpack('<2H', record[26:])
    name = file.read(name_size).decode('utf-8' if member.flag_bits & 0x800 else 'cp437')
    if not record.startswith(b'PK\3\4') or name != member.orig_filename:
        raise zipfile.BadZipFile(f'{member.filename} is not where the index says')
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f'{member.filename} in {path} is encrypted, or packed with method {member.compress_type}: pack '
                        'it without compression (zip -0).')
    if member.file_size > max(LARGE, RATIO * member.compress_size):
        raise UserError(f'{member.filename} in {path} has {member.compress_size} bytes that become {member.file_size}, '
                        'which no data does: leave it out.')
    return Place(path, member.header_offset + ZIP_FILE + name_size + more, member.compress_size, member.file_size,
                 member.compress_type, member.CRC)
