"""Packs a folder of data into tar files."""
import glob
import hashlib
import io
import json
import tarfile
from pathlib import Path

from openmmlab_runs.archives import MEMBERS, shard_name
from openmmlab_runs.errors import UserError
from openmmlab_runs.files import check_free, whole_file


def write_shards(folder: Path, prefix: Path, count: int) -> str:
    """Packs the files of a folder into plain tar files, as they are and in the order of their names.

    They are `<prefix>-00000-of-<count>.tar` and so on. The last file of each is the list `MEMBERS`, by which readers
    find out whether all is there. Hidden files are left out. Links are followed, and those that lead nowhere are left
    out.

    Returns:
        A pattern of the paths of all shards, for `tar://`.
    """
    files = sorted(path for path in map(Path, glob.iglob('**', root_dir=folder, recursive=True))
                   if (folder / path).is_file())
    if not 1 <= count <= len(files):
        raise UserError(f'{folder} has {len(files)} files, which do not fill {count} shards: check the path, or choose '
                        'another number.')
    paths = [Path(shard_name(str(prefix), number, count)) for number in range(count)]
    for path in [paths[0], *prefix.parent.glob(f'{glob.escape(prefix.name)}-*.tar')]:
        check_free(path)
    sizes = [(file.as_posix(), (folder / file).stat().st_size) for file in files]
    name_of_set = hashlib.sha256(json.dumps(sizes).encode()).hexdigest()
    for number, path in enumerate(paths):
        members: dict[str, tuple[int, str]] = {}
        with whole_file(path) as temporary, tarfile.open(temporary, 'w', dereference=True) as shard:
            for file in files[number * len(files) // count:(number + 1) * len(files) // count]:
                members[file.as_posix()] = _add(
                    shard, shard.gettarinfo(folder / file, file.as_posix()), (folder / file).read_bytes())
            _add(shard, tarfile.TarInfo(MEMBERS), json.dumps({'set': name_of_set, 'members': members}).encode())
    return f'{glob.escape(str(prefix.absolute()))}-*-of-{count:05}.tar'


def _add(shard: tarfile.TarFile, member: tarfile.TarInfo, content: bytes) -> tuple[int, str]:
    """Adds a file; returns its size and SHA-256."""
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))
    return len(content), hashlib.sha256(content).hexdigest()
