"""The account of a source: each record that was seen is used, or left out for a reason, and each field is known."""
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from openmmlab_runs.texts import some


class Account:
    """Counts the images and objects of a source by what becomes of them.

    Readers say what they see, from the file alone, and what they leave out. `LabelledData.close` counts what is used
    at the end, so that a record which a reader loses shows.
    """

    def __init__(self) -> None:
        self.seen, self.used = Counter[str](), Counter[str]()  # of 'images' and 'objects'
        self.left_out: dict[str, dict[str, tuple[int, str]]] = {}  # what -> reason -> how many, and the first
        self.remarks: dict[str, tuple[int, str]] = {}  # about what is used, or is neither image nor object
        self.fields = Counter[str]()  # fields that are neither used nor known to say nothing about objects

    def leave(self, what: str, reason: str, first: object, count: int = 1) -> None:
        """Leaves out `count` images or objects; `reason` continues a sentence that begins with the number."""
        _count(self.left_out.setdefault(what, {}), reason, first, count)

    def leave_all(self, what: str, reason: str, found: Collection[object]) -> None:
        self.leave(what, reason, next(iter(found), ''), len(found))

    def read(self, entry: Iterable[str], known: Collection[str], where: str = '') -> None:
        """Notes the fields of an entry that a reader does not know."""
        self.fields.update(f'{where}{key}' for key in entry if key not in known)

    def remark(self, text: str, first: object) -> None:
        """Notes something odd that leaves nothing out; `text` continues a sentence that begins with the number."""
        _count(self.remarks, text, first)

    def lost(self, what: str) -> int:
        """Returns how many records are neither used nor left out, which is a fault of a reader."""
        return self.seen[what] - self.used[what] - sum(
            count for count, _ in self.left_out.get(what, {}).values())

    def lines(self) -> Iterator[str]:
        """Yields a sentence about images, one about objects, if there are any, and one about fields."""
        for what in ('images', 'objects'):
            reasons = [*_clauses(self.left_out.get(what, {}))]
            if lost := self.lost(what):
                reasons.append(f'{lost} are lost, which is a fault of this program: please report it')
            if self.seen[what]:
                yield (f'{self.seen[what]} {what} were seen, and {self.used[what] or "none"} are used'
                       + (f'; left out: {"; ".join(reasons)}.' if reasons else '.'))
        yield from (f'{clause}.' for clause in _clauses(self.remarks))
        if self.fields:
            yield f'Fields that are not read: {some([f"{key} ({count})" for key, count in self.fields.items()], 10)}.'


def _count(found: dict[str, tuple[int, str]], reason: str, first: object, count: int = 1) -> None:
    number, known = found.get(reason, (0, str(first)))
    if count:
        found[reason] = number + count, known


def _clauses(found: dict[str, tuple[int, str]]) -> Iterator[str]:
    yield from (f'{count} {reason}' + f', such as {first}' * bool(first) for reason, (count, first) in found.items())
