"""Checks of constructor arguments. Each error names the argument, its value and what is allowed."""
from collections.abc import Collection, Sequence


def check_choice(name: str, value: object, allowed: Collection[object]) -> None:
    """Raises a ValueError unless `value` is among `allowed`; 1 is not True, and 0 is not False."""
    if not any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in allowed):
        raise ValueError(f'{name} is {value!r}, but must be {" or ".join(map(repr, allowed))}.')


def check_names(kind: str, names: Collection[str], allowed: Collection[str],
                error: type[Exception] = ValueError) -> None:
    """Raises `error` if a name in `names` is not in `allowed`. `kind` describes the names in the message, for example
    'a key of arch'.
    """
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise error(f'{unknown[0]!r} is not {kind}; allowed are {", ".join(map(str, allowed))}.')


def check_positive(name: str, value: int) -> None:
    """Raises a ValueError unless `value` is an int of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f'{name} is {value!r}, but must be an int of at least 1.')


def check_above(name: str, value: float, bound: float) -> None:
    """Raises a ValueError unless `value` is a number above `bound`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > bound:
        raise ValueError(f'{name} is {value!r}, but must be a number above {bound}.')


def check_rates(**rates: float) -> None:
    """Raises a ValueError unless each rate is a number in [0, 1)."""
    for name, value in rates.items():
        if not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ValueError(f'{name} is {value!r}, but must be a number in [0, 1).')


def check_frozen_stages(frozen_stages: int, count: int, parts: str) -> None:
    """Raises a ValueError unless `frozen_stages` is from -1 to `count`, the number of built `parts`."""
    if type(frozen_stages) is not int or frozen_stages not in range(-1, count + 1):
        raise ValueError(f'frozen_stages is {frozen_stages!r}, but must be from -1 to {count}, the number of {parts} '
                         'that out_indices needs.')


def is_sequence_of_ints(value: object) -> bool:
    """Returns whether `value` is a list or tuple of ints; True and False do not count as ints."""
    return isinstance(value, (list, tuple)) and all(type(item) is int for item in value)


def parse_pair(name: str, value: int | tuple[int, int]) -> tuple[int, int]:
    """Returns height and width: `value` twice, or its two parts. Raises a ValueError unless they are positive ints."""
    pair = (value, value) if isinstance(value, int) else value
    if not is_sequence_of_ints(pair) or len(pair) != 2 or min(pair) < 1:
        raise ValueError(f'{name} is {value!r}, but must be an int, or a height and a width, of at least 1.')
    height, width = pair
    return height, width


def parse_indices(out_indices: Sequence[int], count: int, parts: str) -> tuple[int, ...]:
    """Returns increasing indices of `count` parts, counted from 0 or the end; raises a ValueError for others."""
    indices = [i + count if i < 0 else i for i in out_indices] if is_sequence_of_ints(out_indices) else []
    if not indices or indices != [i for i in range(count) if i in indices]:
        raise ValueError(f'out_indices is {out_indices!r}, but must be a sequence of increasing {parts} from 0 to '
                         f'{count - 1}, or from {-count} to -1.')
    return tuple(indices)
