"""Reads files of weights on this machine: tensors and plain data. Nothing else that a file names is imported or called.

torch's `weights_only` refuses a file with other objects, such as the log of mmengine. Here an empty object takes the
place of each, and is then left out.
"""
import json
import pickle
import pickletools
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

import torch

from openmmlab_tools.errors import UserError, first_line
from openmmlab_tools.files import META

NAMES = 50  # of other classes and functions in a file, at most; a log has ten, and torch looks up each for each object
WHOLE = ('optimizer', 'param_schedulers')  # of no use in part
LOCK = RLock()  # torch's list of permitted classes is global


class LeftOut:
    """Replaces a class, function or object of a checkpoint: accepts any arguments and state, and stores nothing."""

    __slots__ = ()

    def __new__(cls, *args: object) -> 'LeftOut':
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        pass


def is_safetensors(path: str | Path) -> bool:
    return str(path).endswith('.safetensors')


def parse(path: Path, safetensors: bool, map_location: str = 'cpu') -> tuple[object, list[str]]:
    """Reads a file of torch.save or safetensors; errors are of many types.

    Returns:
        The tensors and plain data, and the top-level keys under which other objects were left out.
    """
    if not safetensors:
        content, has_others = _torch_load(path, map_location)
        return content, _leave_out(content) if has_others else []
    try:
        from safetensors import SafetensorError, safe_open
        from safetensors.torch import load_file
    except ImportError as error:
        raise UserError(f'checkpoint {path} needs a package that is not installed: pip install safetensors.'
                        ) from error
    try:
        tensors = {name: tensor.to(map_location) for name, tensor in load_file(path).items()}
        with safe_open(path, 'pt') as file:
            meta = _meta_in((file.metadata() or {}).get(META))
        return dict(state_dict=tensors, meta=meta) if meta else tensors, []
    except SafetensorError as error:
        raise ValueError(first_line(error)) from error


def _meta_in(text: str | None) -> dict[str, Any]:
    """Returns the `meta` of a checkpoint from the header of a safetensors file; none if it is not ours."""
    with suppress(ValueError, RecursionError):
        meta = json.loads(text or '')
        return meta if isinstance(meta, dict) else {}
    return {}


def _torch_load(path: Path, map_location: str) -> tuple[object, bool]:
    """Returns the content of a file of torch.save, and whether a `LeftOut` may be in it."""
    with LOCK:
        known = torch.serialization.get_safe_globals()
        torch.serialization.clear_safe_globals()  # what the process lets in otherwise could run code of numpy
        try:
            names: list[str] = []
            with suppress(ValueError):  # it is damaged: torch.load says so
                names = _foreign_names(path)
            if len(names) > NAMES:
                raise pickle.UnpicklingError(f'it names {len(names)} classes and functions')
            torch.serialization.add_safe_globals([(LeftOut, name) for name in names])
            return torch.load(path, map_location=map_location, weights_only=True), bool(names)
        finally:
            torch.serialization.clear_safe_globals()
            torch.serialization.add_safe_globals(known)


def _foreign_names(path: Path) -> list[str]:
    """Returns the names of classes and functions in a file of torch.save that are not torch's own."""
    with path.open('rb') as file:
        if file.read(2) == b'PK':
            return torch.serialization.get_unsafe_globals_in_checkpoint(path)
        file.seek(0)
        # The form of torch before 1.6: three numbers, then the content. torch prefers what is its own.
        names = {str(name) for _ in range(4) for code, name, _ in pickletools.genops(file) if code.name == 'GLOBAL'}
    return [name.replace(' ', '.').replace('__builtin__.', 'builtins.') for name in names]


def _leave_out(content: object) -> list[str]:
    """Removes each `LeftOut` from dicts in a content; other containers of one are left out as a whole. Returns the
    top-level keys under which there were any.
    """
    count, spoilt = 0, dict[int, bool]()  # containers may hold each other, and themselves

    def must_go(value: object) -> bool:
        nonlocal count
        if isinstance(value, dict | list | tuple | set) and id(value) not in spoilt:
            spoilt[id(value)] = False
            if isinstance(value, dict):
                for entries in (value, getattr(value, '__dict__', {})):
                    for key in [key for key, entry in entries.items() if must_go(key) or must_go(entry)]:
                        del entries[key]
            else:
                spoilt[id(value)] = any(map(must_go, value))
        goes = value is LeftOut or isinstance(value, LeftOut) or spoilt.get(id(value), False)
        count += goes
        return goes

    if not isinstance(content, dict):
        if must_go(content):
            raise pickle.UnpicklingError('it is an object other than plain data')
        return []
    left_out = []
    for key, value in list(content.items()):
        before = count
        goes = must_go(key) or must_go(value)
        if count > before:
            left_out.append(str(key))
            if goes or key in WHOLE:
                del content[key]
    return left_out
