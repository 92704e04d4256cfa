"""Packs a folder of data into tar files."""
import glob
import tarfile
from pathlib import Path

from cpvt_mm.errors import UserError
from cpvt_mm.files import check_free, whole_file


def write_shards(folder: Path, prefix: Path, count: int) -> str:
    """Packs the files of a folder into plain tar files, as they are and in the order of their names.

    Hidden files are left out. Links are followed, and those that lead nowhere are left out.

    Args:
        folder: The folder.
        prefix: The shards are `<prefix>-00000.tar` and so on.
        count: The number of shards.

    Returns:
        A pattern of the paths of all shards, for `tar://`.

    Raises:
        UserError: If the folder has no file or fewer than `count`, or there are shards with this prefix.
    """
    files = sorted(path for path in map(Path, glob.iglob('**', root_dir=folder, recursive=True))
                   if (folder / path).is_file())
    if not 1 <= count <= len(files):
        raise UserError(f'{folder} has {len(files)} files, which do not fill {count} shards: check the path, or choose '
                        'another number.')
    paths = [prefix.with_name(f'{prefix.name}-{number:05}.tar') for number in range(count)]
    for path in [paths[0], *prefix.parent.glob(f'{glob.escape(prefix.name)}-*.tar')]:
        check_free(path)
    for number, path in enumerate(paths):
        with whole_file(path) as temporary, tarfile.open(temporary, 'w', dereference=True) as shard:
            for file in files[number * len(files) // count:(number + 1) * len(files) // count]:
                shard.add(folder / file, file)
    return f'{glob.escape(str(prefix.absolute()))}-*.tar'
