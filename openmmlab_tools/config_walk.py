"""Finds dicts and values in configs, which are nested dicts and lists."""
from collections.abc import Iterator, Mapping
from typing import Any


def walk(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Yields all dicts in nested dicts and lists, outer dicts first, each with its path of keys."""
    if isinstance(value, dict):
        yield path, value
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from walk(item, (*path, index))


def leaves(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    """Yields the values in nested dicts and lists of dicts, with their dotted keys."""
    has_dicts = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if not has_dicts and not (isinstance(value, dict) and value):
        yield path, value
        return
    for key, item in enumerate(value) if has_dicts else value.items():
        yield from leaves(item, f'{path}.{key}' if path else str(key))


def arch_of(backbone: Mapping[str, Any]) -> str | None:
    """Returns the name of a backbone's `arch`, a text or a dict with a name; None if it has none."""
    arch = backbone.get('arch')
    name = arch.get('name') if isinstance(arch, dict) else arch
    return name if isinstance(name, str) else None


def dicts(value: Any) -> list[dict[str, Any]]:
    """Returns the dicts in a list, or a single dict as a list."""
    return [part for part in (value if isinstance(value, list | tuple) else [value]) if isinstance(part, dict)]
