"""Finds the key of a config that a misspelt name stands for."""
import difflib
import re
from collections.abc import Iterable, Sequence

# Similarity of options that may be misspelt, such as `lrr` for `lr`, or `modle` for `model`.
NEAR = 0.75


def is_one_slip_from(name: str, key: str) -> bool:
    """Returns whether a name differs from a key by one letter (added, missing or changed), or by two swapped
    neighbours.
    """
    start = next((index for index, (a, b) in enumerate(zip(name, key, strict=False)) if a != b),
                 min(len(name), len(key)))
    mine, right = name[start:], key[start:]
    return name != key and (mine[1:] == right or mine == right[1:] or mine[1:] == right[1:]
                            or (mine[:2] == right[1::-1] and mine[2:] == right[2:]))


def overrides_nothing(name: str, source: str) -> bool:
    """Returns whether a file with a base assigns a name that it does not use; a dump has no base."""
    has_base = re.search(r'^_base_ *=|^with read_base', source, re.MULTILINE)
    return bool(has_base) and len(re.findall(rf'\b{re.escape(name)}\b', source)) == 1


def nearest(name: str, keys: Sequence[str]) -> str:
    """Returns the outermost dotted key whose last part equals or resembles the name; '' if there is none."""
    last = {key.rpartition('.')[2] for key in keys}
    near = [name] if name in last else difflib.get_close_matches(name, sorted(last), 5, NEAR)
    return min((key for key in keys if key.rpartition('.')[2] in near), key=lambda key: key.count('.'), default='')


def mistaken_for(name: str, known: Iterable[str]) -> str | None:
    """Returns the first of the known keys that a name is one slip away from, or None."""
    return next((key for key in sorted(known) if is_one_slip_from(name, key)), None)
