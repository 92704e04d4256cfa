"""Checks of constructor arguments: each error is one sentence that names the argument and what is allowed."""
import functools
import inspect
from collections.abc import Callable, Collection


def check_keywords(init: Callable[..., None]) -> Callable[..., None]:
    """Decorates an `__init__`: a keyword it does not know raises a TypeError that lists those it does."""
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


def check_rate(name: str, value: float) -> None:
    """Raises a ValueError unless `value` is a number in [0, 1)."""
    if not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f'{name} is {value!r}, but must be a number in [0, 1).')


def check_positive(name: str, value: int) -> None:
    """Raises a ValueError unless `value` is an int of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f'{name} is {value!r}, but must be an int of at least 1.')


def check_rates(**rates: float) -> None:
    """`check_rate` of each argument."""
    for name, rate in rates.items():
        check_rate(name, rate)


def check_img_size(img_size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width of `img_size`, an int of at least 1 or two of them; anything else raises a ValueError."""
    sides = (img_size, img_size) if isinstance(img_size, int) else img_size
    if not isinstance(sides, (list, tuple)) or len(sides) != 2:
        raise ValueError(f'img_size is {img_size!r}, but must be an int, or a height and a width.')
    for side in sides:
        check_positive('img_size', side)
    return tuple(sides)
