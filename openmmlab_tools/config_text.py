r"""Writes the text of configs, so that mmengine reads the same values again. Configs in mmengine's pure Python style,
whose types are classes, become configs whose types are names.

mmengine replaces templates such as `{{ fileDirname }}` before Python reads a config, also in strings. Therefore, this
module never writes two consecutive braces.
"""
import importlib
import keyword
import math
import re
from collections.abc import Iterable, Iterator
from textwrap import fill
from types import BuiltinFunctionType, FunctionType
from typing import Any

import mmengine.registry
import numpy as np
from mmengine.config import Config
from mmengine.registry import Registry
from mmengine.utils import get_object_from_string

from .config_walk import walk
from .errors import UserError
from .libraries import require
from .texts import printable

WIDTH = 120


def without_templates(source: str, brace: str = r'\x7b') -> str:
    """Returns source of values without templates; `brace` is how a string of its language writes a brace."""
    return re.sub(r'(?<=\{)\{', lambda _: brace, source)


def to_source(value: Any, indent: int = 0, used: int = 0) -> str:
    """Returns Python source for a value, whose first line begins with `indent` spaces, and has `used` other characters.
    """
    line = _one_line(value)
    if used + len(line) <= WIDTH or not isinstance(value, dict | list | tuple):
        return line
    begin, named, end = _parts(value)
    inner = indent + 4
    items = [f'{" " * inner}{name}{to_source(item, inner, inner + len(name) + 1)},\n' for name, item in named]
    return f'{begin}\n{"".join(items)}{" " * indent}{end}'


def _one_line(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        begin, named, end = _parts(value)
        comma = ',' if isinstance(value, tuple) and len(value) == 1 else ''
        return f'{begin}{", ".join(name + _one_line(item) for name, item in named)}{comma}{end}'
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, type | FunctionType | BuiltinFunctionType):  # registries also accept names
        value = f'{value.__module__}.{value.__qualname__}'
    return without_templates(repr(value))


def _parts(value: dict[Any, Any] | list[Any] | tuple[Any, ...]) -> tuple[str, list[tuple[str, Any]], str]:
    if not isinstance(value, dict):
        return ('[', [('', item) for item in value], ']') if isinstance(value, list) else (
            '(', [('', item) for item in value], ')')
    if all(map(_is_name, value)):
        return 'dict(', [(f'{key}=', item) for key, item in value.items()], ')'
    return '{', [(f'{_one_line(key)}: ', item) for key, item in value.items()], '}'


def _is_name(key: Any) -> bool:
    # Python would change names that are not ASCII.
    return isinstance(key, str) and key.isascii() and key.isidentifier() and not keyword.iskeyword(key)


def assignments(values: dict[str, Any]) -> str:
    """Returns Python source that assigns values of a config to their names."""
    return ''.join(f'{key} = {to_source(value, used=len(key) + 3)}\n' if _is_name(key) else
                   f'globals()[{_one_line(key)}] = {to_source(value)}\n' for key, value in values.items())


def comment(lines: Iterable[str]) -> str:
    """Returns a comment of Python for lines of text, with names from data, which cannot end it."""
    return without_templates('\n'.join(
        fill(printable(line), WIDTH, initial_indent='# ', subsequent_indent='# ') for line in lines))


def to_text_style(cfg: Config, libraries: tuple[str, ...]) -> Config:
    """Returns a config whose types are names, such as 'MaskRCNN', instead of classes or paths such as
    `mmdet.models.MaskRCNN`.

    If `default_scope` is None, it becomes the library in `libraries` that contains the model. Configs that already use
    names stay unchanged. Raises a UserError for a type that begins with a dot.
    """
    content = cfg.to_dict()
    parts = [part for key in ('model', *content) for _, part in walk(content.get(key))]
    kinds = [part['type'] for part in parts if isinstance(part.get('type'), str)]
    if relative := [kind for kind in kinds if kind.startswith('.')]:
        raise UserError(f'type is {relative[0]!r} in config {cfg.filename}, which is no name of a class: correct it.')
    places = {kind for kind in kinds if kind.count('.') > 1}
    scope = content.get('default_scope')
    if scope is None and 'default_scope' in content:
        owners = (str(part.get('type')).partition('.')[0] for part in parts)
        scope = content['default_scope'] = next((owner for owner in owners if owner in libraries), None)
    if not places or scope not in libraries:
        return cfg if scope == cfg.get('default_scope') else Config(content, cfg.text, cfg.filename)
    require(scope)
    objects = {place: find(place) for place in places}  # what is not imported yet is not registered
    names = dict(registered(scope))
    for part in parts:
        if part.get('type') in places:
            part['type'] = names.get(objects[part['type']], part['type'])
    return Config(content, cfg.text, cfg.filename)


def find(place: str) -> Any:
    """Returns the object at a place such as `mmdet.models.MaskRCNN`, or None."""
    module, _, name = place.rpartition('.')
    try:
        # The attribute `smooth_l1_loss` of `mmdet.models.losses` is a function, which hides the module of that name.
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return get_object_from_string(place)


def registered(scope: str) -> Iterator[tuple[Any, str]]:
    """Yields registered classes and functions with their names in this default scope; the last name is valid in their
    own package.
    """
    roots = {id(value): value for value in vars(mmengine.registry).values() if isinstance(value, Registry)}
    for root in roots.values():
        library = root.children.get(scope, root)
        for name, kind in (*root.module_dict.items(), *library.module_dict.items()):
            yield kind, name if library.module_dict.get(name, kind) is kind else f'{root.scope}.{name}'
        for registry in root.children.values():
            for name, kind in registry.module_dict.items():
                if registry is not library and kind.__module__.partition('.')[0] == registry.scope:
                    yield kind, f'{registry.scope}.{name}'
