"""The account of a source: each record that was seen is used, or left out for a reason, and so is each file."""
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from openmmlab_tools.texts import some

from .files import ROLES, Files

SHOWN = 10  # fields and patterns of files that a sentence names


class Account:
    """Counts the images and objects of a source by what becomes of them, and notes what each file is used for.

    Readers say what they see, from the file alone, and what they leave out. `LabelledData.close` counts what is used
    at the end, so that a record which a reader loses shows.
    """

    def __init__(self) -> None:
        self.seen, self.used = Counter[str](), Counter[str]()  # of 'images' and 'objects'
        self.left_out: dict[str, dict[str, Counter[str]]] = {}  # what -> reason -> examples, and how many of each
        self.remarks: dict[str, Counter[str]] = {}  # about what is used, or is neither image nor object
        self.fields = Counter[str]()  # fields that are neither used nor known to say nothing about objects
        self.roles: dict[Path, str] = {}  # the files that are used, and for which of `ROLES`
        self.files: Files | None = None  # all files of the source; None: not known

    def leave(self, kind: str, reason: str, example: object, count: int = 1) -> None:
        """Leaves out `count` images or objects; `reason` continues a sentence that begins with the number."""
        _count(self.left_out.setdefault(kind, {}), reason, example, count)

    def leave_all(self, kind: str, reason: str, examples: Collection[object]) -> None:
        for example in examples:
            self.leave(kind, reason, example)

    def read(self, entry: Iterable[str], known: Collection[str], where: str = '') -> None:
        """Notes the fields of an entry that a reader does not know."""
        self.fields.update(f'{where}{key}' for key in entry if key not in known)

    def remark(self, text: str, example: object, count: int = 1) -> None:
        """Notes something odd that leaves nothing out; `text` continues a sentence that begins with the number."""
        _count(self.remarks, text, example, count)

    def use(self, role: str, *paths: Path) -> None:
        """Notes that files are used for one of `ROLES`."""
        assert role in ROLES
        self.roles.update(dict.fromkeys(paths, role))

    def lost(self, kind: str) -> int:
        """Returns how many records are neither used nor left out, which is a fault of a reader."""
        return self.seen[kind] - self.used[kind] - sum(
            examples.total() for examples in self.left_out.get(kind, {}).values())

    def lines(self) -> Iterator[str]:
        """Yields sentences: about images, about objects (if there are any), about files, and about other findings."""
        for kind in ('images', 'objects'):
            reasons = [*_clauses(self.left_out.get(kind, {}))]
            if lost := self.lost(kind):
                reasons.append(f'{lost} are lost because of a bug in this program: please report it')
            if self.seen[kind]:
                yield (f'{self.used[kind] or "none"} of {self.seen[kind]} {kind} are used'
                       + (f'; skipped: {"; ".join(reasons)}.' if reasons else '.'))
        if self.files:
            yield self.files.sentence(SHOWN)
        yield from (f'{clause}.' for clause in _clauses(self.remarks))
        if self.fields:
            yield f'Fields that are not read: {some(_numbered(self.fields), SHOWN)}.'

    def details(self) -> Iterator[str]:
        """Yields all that `lines` shortens: each example with its number, each field, and each file."""
        for kind in ('images', 'objects'):
            for reason, examples in self.left_out.get(kind, {}).items():
                yield from ('', f'{kind} that are skipped ({examples.total()} {reason}):', *_numbered(examples))
        for text, examples in self.remarks.items():
            yield from ('', f'{examples.total()} {text}:', *_numbered(examples))
        if self.fields:
            yield from ('', 'Fields that are not read:', *_numbered(self.fields))
        if self.files:
            yield from self.files.details()


def _count(reasons: dict[str, Counter[str]], reason: str, example: object, count: int) -> None:
    if count:
        reasons.setdefault(reason, Counter())[str(example)] += count


def _clauses(reasons: dict[str, Counter[str]]) -> Iterator[str]:
    for reason, examples in reasons.items():
        first = next(filter(None, examples), '')
        yield f'{examples.total()} {reason}' + f', such as {first}' * bool(first)


def _numbered(examples: Counter[str]) -> list[str]:
    return [f'{name} ({count})' for name, count in examples.items() if name]
