"""Checks constructor arguments. Each error is one sentence that names the argument and the allowed values."""
import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Arch = TypeVar('Arch', bound='DataclassInstance')


def check_keywords(init: Callable[..., None]) -> Callable[..., None]:
    """Decorates an `__init__`: an unknown keyword raises a TypeError that lists the allowed ones."""
    allowed = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: object, *args: object, **kwargs: object) -> None:
        check_names(f'an argument of {type(self).__name__}', kwargs, allowed, TypeError)
        init(self, *args, **kwargs)

    return checked


def check_names(what: str, names: Collection[str], allowed: Collection[str],
                error: type[Exception] = ValueError) -> None:
    """Raises `error` if one of `names` is not among `allowed`."""
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise error(f'{unknown[0]!r} is not {what}; allowed are {", ".join(map(str, allowed))}.')


def check_positive(name: str, value: int) -> None:
    """Raises a ValueError unless `value` is an int of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f'{name} is {value!r}, but must be an int of at least 1.')


def check_above(name: str, value: float, bound: float) -> None:
    """Raises a ValueError unless `value` is a number above `bound`."""
    if not isinstance(value, (int, float)) or not value > bound:
        raise ValueError(f'{name} is {value!r}, but must be a number above {bound}.')


def check_rates(**rates: float) -> None:
    """Raises a ValueError unless each rate is a number in [0, 1)."""
    for name, value in rates.items():
        if not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ValueError(f'{name} is {value!r}, but must be a number in [0, 1).')


def check_with_cp(with_cp: bool | str) -> None:
    """Raises a ValueError unless `with_cp` is False, True or 'selective'."""
    if not isinstance(with_cp, bool) and with_cp != 'selective':
        raise ValueError(f"with_cp is {with_cp!r}, but must be False, True or 'selective'.")


def check_eps(name: str, value: float) -> None:
    """Raises a ValueError unless `value` is a float between 0 and 1, both excluded."""
    if not isinstance(value, float) or not 0 < value < 1:
        raise ValueError(f'{name} is {value!r}, but must be a float between 0 and 1.')


def check_frozen_stages(frozen_stages: int, count: int, parts: str) -> None:
    """Raises a ValueError unless `frozen_stages` is from -1 to `count`, the number of built `parts` (stages or blocks).
    """
    if not isinstance(frozen_stages, int) or frozen_stages not in range(-1, count + 1):
        raise ValueError(f'frozen_stages is {frozen_stages!r}, but must be from -1 to {count}, the number of {parts} '
                         'that out_indices needs.')


def is_sequence_of_ints(value: object) -> bool:
    """Returns whether `value` is a list or tuple of ints; True and False do not count as ints."""
    return isinstance(value, (list, tuple)) and all(type(item) is int for item in value)


def check_img_size(img_size: int | tuple[int, int]) -> tuple[int, int]:
    """Returns height and width of `img_size`: an int, or a pair of ints, of at least 1; otherwise raises a ValueError.
    """
    sides = (img_size, img_size) if isinstance(img_size, int) else img_size
    if not isinstance(sides, (list, tuple)) or len(sides) != 2:
        raise ValueError(f'img_size is {img_size!r}, but must be an int, or a height and a width.')
    for side in sides:
        check_positive('img_size', side)
    height, width = sides
    return height, width


def parse_arch(arch: str | dict[str, Any], cls: type[Arch], named: Mapping[str, Arch]) -> Arch:
    """Returns the arch in `named` with the name `arch`, or builds the dataclass `cls` from a dict.

    Raises:
        ValueError: If the name is unknown, a key of the dict is unknown, or a required key is missing.
    """
    allowed = [field.name for field in fields(cls)]
    required = [field.name for field in fields(cls) if field.default is MISSING]
    if isinstance(arch, dict):
        check_names('a key of arch', arch, allowed)
        if not set(required) <= set(arch):
            raise ValueError(f'arch has only {", ".join(arch)}, but must have {", ".join(required)}.')
        return cls(**arch)
    if arch not in list(named):
        raise ValueError(f'{arch!r} is not an arch; allowed are {", ".join(named)}, or a dict of {", ".join(allowed)}.')
    return named[arch]
