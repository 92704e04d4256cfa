"""Reads files of weights on this machine. Classes of mmengine's log are let in; what could run code is not.

mmengine pickles its log with numpy arrays. A pickle that may call `numpy.ndarray` can pass it a buffer and end the
process, so classes here stand for those of numpy.
"""
import argparse
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any, SupportsIndex

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from openmmlab_runs.errors import UserError, first_line

NUMBERS = ('b1', 'i1', 'i2', 'i4', 'i8', 'u1', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8')
# Keys of a logged scalar in plain types.
HISTORY = ('log_history', 'count_history', 'max_length')
FORCE, FORBID = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD', 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'


class NumberType:
    """Stands for `numpy.dtype`: a dtype of numbers."""

    def __init__(self, name: str, align: bool = False, copy: bool = True) -> None:
        if name not in NUMBERS:
            raise pickle.UnpicklingError(f'it has an array of dtype {name!r}')
        self.dtype = np.dtype(name)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class Numbers(np.ndarray):
    """Stands for `numpy.ndarray`: behaves and is pickled as one, but cannot be made from a buffer."""

    def __new__(cls, *args: object) -> 'Numbers':
        if args:
            raise pickle.UnpicklingError('it makes an array from a buffer')
        return super().__new__(cls, 0)

    def __setstate__(self, state: tuple[int, tuple[int, ...], NumberType, bool, bytes]) -> None:  # type: ignore[override]
        _, shape, kind, is_fortran, content = state
        # Raises an error unless the content has the size of the shape.
        values = _numbers(content, kind).reshape(shape, order='F' if is_fortran else 'C')
        super().__setstate__((1, values.shape, values.dtype, False, values.tobytes()))  # type: ignore[arg-type]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)


def _numbers(content: bytes, kind: NumberType) -> np.ndarray:
    if not isinstance(content, bytes) or not isinstance(kind, NumberType):
        raise pickle.UnpicklingError('it has an array that is not of numbers')
    return np.frombuffer(content, kind.dtype)


def make_array(cls: type[Numbers], shape: tuple[int, ...], code: bytes) -> Numbers:
    """Stands for `numpy._core.multiarray._reconstruct`: makes an empty array, whose content follows in the pickle."""
    return Numbers()


def make_scalar(kind: NumberType, content: bytes) -> np.generic:
    """Stands for `numpy._core.multiarray.scalar`."""
    value, = _numbers(content, kind)
    return value


def get_statistic(owner: object, name: str) -> object:
    """Stands for `getattr`: gives only the methods that a pickled HistoryBuffer needs."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError(f'it asks for attribute {name} of {owner}')
    return getattr(owner, name)


def to_builtin_types(value: Any) -> Any:
    """Converts logged scalars, numpy's numbers and arrays in nested containers to tensors, numbers and lists."""
    if isinstance(value, HistoryBuffer):
        history, counts = (torch.from_numpy(np.array(array)) for array in value.data)
        return dict(zip(HISTORY, (history, counts, value.max_length), strict=True))
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        return {to_builtin_types(key): to_builtin_types(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(to_builtin_types(one) for one in value)
    return value


# Objects that a file may name, with the name if it is not their own. numpy 1 says core, numpy 2 _core. Training
# checkpoints of DeiT and Twins contain the command-line arguments as a Namespace.
ALLOWED: tuple[Any, ...] = (
    argparse.Namespace, HistoryBuffer, (get_statistic, 'builtins.getattr'), (Numbers, 'numpy.ndarray'),
    (NumberType, 'numpy.dtype'),
    *((function, f'numpy.{core}.multiarray.{name}') for core in ('core', '_core')
      for name, function in (('_reconstruct', make_array), ('scalar', make_scalar))))


LOCK = RLock()  # the settings are those of the process


@contextmanager
def mmengine_log() -> Iterator[None]:
    """Lets `torch.load` read mmengine's log in the `with` block, and no code, whoever calls it. Blocks may be nested;
    those of several threads wait for each other.
    """
    with LOCK:
        known = torch.serialization.get_safe_globals()
        variables = {name: os.environ.pop(name, None) for name in (FORCE, FORBID)}
        os.environ[FORCE] = '1'
        try:
            with torch.serialization.safe_globals([entry for entry in ALLOWED if entry not in known]):
                yield
        finally:
            for name, value in variables.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def is_safetensors(path: str | Path) -> bool:
    return str(path).endswith('.safetensors')


def parse(path: Path, safetensors: bool, map_location: str = 'cpu') -> object:
    """Reads tensors, plain data and mmengine's log of torch.save or safetensors; errors are of many types."""
    if not safetensors:
        with mmengine_log():
            return torch.load(path, map_location=map_location, weights_only=True)
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise UserError(f'checkpoint {path} needs a package that is not installed: pip install safetensors.'
                        ) from error
    try:
        return {name: tensor.to(map_location) for name, tensor in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError(first_line(error)) from error
