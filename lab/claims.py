"""Statements of a paper about two rows of a study, and whether the seeds of the study agree."""
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Verdict = Literal['same', 'opposite', 'cannot tell']
# The values of one row and test, by seed.
Seeds = Mapping[int, float]
# The values of a study, by variant and test.
Values = Mapping[tuple[str, str], Seeds]


@dataclass(frozen=True)
class Cell:
    """A variant of a study and a test: one cell in the table of results."""
    variant: str
    test: str = '1x'

    def of_seeds(self, values: Values) -> Seeds:
        return values.get((self.variant, self.test), {})


@dataclass(frozen=True)
class Gap:
    """The difference between two cells, for each seed that both have."""
    cell: Cell
    below: Cell

    def of_seeds(self, values: Values) -> Seeds:
        upper, lower = self.cell.of_seeds(values), self.below.of_seeds(values)
        return {seed: upper[seed] - lower[seed] for seed in upper if seed in lower}


@dataclass(frozen=True)
class Claim:
    """A statement that one value is higher than another.

    Attributes:
        name: A short name, by which other pages refer to the claim.
        statement: The sentence.
        section: Where the paper states it.
        paper: The paper's numbers, higher one first.
        higher: What is higher.
        lower: What is lower. None: zero.
        margin: If above 0, the statement is that both differ by less than this.
    """
    name: str
    statement: str
    section: str
    paper: str
    higher: Cell | Gap
    lower: Cell | Gap | None = None
    margin: float = 0.

    def sides(self, values: Values) -> tuple[list[float], list[float]]:
        """Returns the values of all seeds, the higher side first, each in the order of the seeds."""
        return tuple([side.of_seeds(values)[seed] for seed in sorted(side.of_seeds(values))] if side else [0.]
                     for side in (self.higher, self.lower))  # type: ignore[return-value]  # two sides

    def verdict(self, values: Values) -> Verdict | None:
        """Returns None if a side has no value; 'cannot tell' if the seeds overlap, or a side has only one."""
        higher, lower = self.sides(values)
        if not higher or not lower:
            return None
        if len(higher) < 2 or (self.lower and len(lower) < 2):
            return 'cannot tell'
        differences = [a - b for a in higher for b in lower]
        if self.margin:
            differences = [self.margin - abs(difference) for difference in differences]
        return 'same' if min(differences) > 0 else 'opposite' if max(differences) < 0 else 'cannot tell'


def by_cell(rows: Iterable[Mapping[str, str]], metric: str = 'mIoU') -> Values:
    """Reads the rows of a study's CSV file; rows of another metric have no value."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if row.get(metric):
            values.setdefault((row['variant'], row['test']), {})[int(row['seed'])] = float(row[metric])
    return values
