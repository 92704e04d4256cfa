"""Sorts the files in a folder: images, labels, descriptions, and skipped files by pattern."""
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from openmmlab_tools.texts import some

from .folder import is_hidden

ROLES = ('images', 'labels', 'descriptions')  # lists of classes and splits describe data
MOST_PATTERNS = 20  # with more, folders are joined


@dataclass(frozen=True)
class Files:
    """The files below a folder, sorted by their use; names are relative to the folder."""
    used: dict[str, list[str]]  # for each of `ROLES`
    left_out: dict[str, list[str]]  # by a pattern, or by the name if it is one file
    elsewhere: int = 0  # files that are used, but lie outside of the folder

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """The numbers of images, labels, descriptions and skipped files; together, these are all files."""
        images, labels, descriptions = (len(self.used[role]) for role in ROLES)
        return images, labels, descriptions, sum(map(len, self.left_out.values()))

    def sentence(self, limit: int) -> str:
        images, labels, descriptions, others = self.numbers
        patterns = some([name if len(names) == 1 else f'{name} ({len(names)})'
                         for name, names in self.left_out.items()], limit)
        return (f'{sum(self.numbers)} files: {images} images, {labels} with labels, {descriptions} with classes or '
                f'splits, and {others} skipped{f": {patterns}" if others else ""}.'
                + (f' {self.elsewhere} files outside this folder are also used.' if self.elsewhere else ''))

    def details(self) -> Iterator[str]:
        for role in ROLES:
            yield from ('', f'files that are {role}:', *self.used[role])
        for pattern, names in self.left_out.items():
            yield from ('', f'files that are skipped, {pattern}:', *names)


def sort_files(files: Iterable[Path], hidden: Iterable[Path], root: Path, roles: Mapping[Path, str]) -> Files:
    """Sorts the files below `root` by their roles; those without a role, and hidden files, are left out."""
    start = f'{root}{os.sep}'.replace(f'{os.sep}{os.sep}', os.sep)  # the root of a disk ends with a separator

    def names_of(paths: Iterable[Path]) -> list[str]:
        return [str(path)[len(start):].replace(os.sep, '/') for path in paths if str(path).startswith(start)]

    below = {path for path in files if str(path).startswith(start)}
    return Files({role: names_of(sorted(path for path in below if roles.get(path) == role)) for role in ROLES},
                 to_patterns(names_of(sorted(below - roles.keys()))) | _hidden(names_of(sorted(hidden))),
                 len(roles.keys() - below))


def to_patterns(names: Sequence[str]) -> dict[str, list[str]]:
    """Groups file names by folder, by suffix, and by a word at the end of the name such as `_mask`."""
    groups = _grouped(names, lambda path: (path.parent.as_posix(), _end_of(path), path.suffix))
    if len(groups) > MOST_PATTERNS:
        groups = _grouped(names, lambda path: (path.parent.as_posix(), '', path.suffix))
    if len(groups) > MOST_PATTERNS:
        groups = _grouped(names, lambda path: (f'{path.parts[0]}/**' if len(path.parts) > 1 else '.', '', path.suffix))
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _grouped(names: Sequence[str], key_of: Callable[[PurePosixPath], tuple[str, str, str]]) -> dict[str, list[str]]:
    groups: dict[tuple[str, str, str], list[str]] = {}
    for name in names:
        groups.setdefault(key_of(PurePosixPath(name)), []).append(name)
    return {members[0] if len(members) == 1 else f'{folder}/*{end}{suffix}'.removeprefix('./'): members
            for (folder, end, suffix), members in groups.items()}


def _end_of(path: PurePosixPath) -> str:
    """Returns the last word of a name behind an underscore, such as `_mask`, if there is something before it."""
    match = re.search(r'(?<=.)_[A-Za-z]+\d?$', path.stem)
    return match[0] if match else ''


def _hidden(names: Sequence[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        parts = name.split('/')
        depth = next((depth for depth, part in enumerate(parts) if is_hidden(part)), 0)
        is_file = depth == len(parts) - 1
        groups.setdefault(f'**/{parts[depth]}' if is_file else '/'.join([*parts[:depth + 1], '**']), []).append(name)
    return {members[0] if len(members) == 1 else f'hidden {pattern}': members for pattern, members in groups.items()}
