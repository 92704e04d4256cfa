"""Reading checkpoints: tensors only, and never in part without a word."""
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.fileio import get_local_path
from mmengine.logging import HistoryBuffer
from mmengine.model import is_model_wrapper
from torch import nn

from cpvt_mm.errors import UserError, first_line


def read_tensors_only() -> None:
    """Has torch.load refuse code in this process, whoever calls it, but read the log in mmengine's checkpoints.

    `resume` needs that log; mmengine 0.10.7 does not put its classes on torch's list. onedl's mmengine would answer a
    refusal by reading the file again with all its code; the variable rules that out.
    """
    os.environ['TORCH_FORCE_WEIGHTS_ONLY_LOAD'] = '1'
    scalar, _ = np.float64(0).__reduce__()
    array, *_ = np.zeros(0).__reduce__()
    both_numpys = [(function, f'numpy.{core}.multiarray.{function.__name__}')
                   for function in (scalar, array) for core in ('core', '_core')]
    dtypes = [type(np.dtype(code)) for code in ('f4', 'f8', 'i4', 'i8')]
    torch.serialization.add_safe_globals(
        [HistoryBuffer, (_get_statistic, 'builtins.getattr'), *both_numpys, np.ndarray, np.dtype, *dtypes])


def _get_statistic(owner: object, name: str) -> object:
    """Stands in for getattr in a checkpoint, where a HistoryBuffer names its methods, and does no more than that."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError(f'it asks for attribute {name} of {owner}')
    return getattr(owner, name)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint (a path or a URL) to the CPU: tensors, numbers, strings and mmengine's log, no other object.

    Raises:
        UserError: If there is no such file, or it is no such checkpoint.
    """
    read_tensors_only()
    try:
        with get_local_path(path) as local:
            checkpoint = torch.load(local, map_location='cpu', weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f'checkpoint {path} does not exist: check the path.') from error
    except pickle.UnpicklingError as error:
        # torch's own words advise to switch the protection off.
        raise UserError(f'checkpoint {path} is damaged, or holds code or objects beside tensors: only tensors are '
                        'read, save its state_dict alone.') from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UserError(f'checkpoint {path} cannot be read ({first_line(error)}): it is damaged or no checkpoint.'
                        ) from error
    if not isinstance(checkpoint, dict):
        raise UserError(f'checkpoint {path} holds a {type(checkpoint).__name__}, but must hold a dict of tensors.')
    return checkpoint


def check_fits(model: nn.Module, path: str | Path) -> None:
    """Compares a checkpoint's names and shapes with a model's; mmengine would load what fits and go on.

    Raises:
        UserError: If a parameter or buffer is missing, left over or of another shape.
    """
    checkpoint = read_checkpoint(path)
    _compare(model, _bare(checkpoint.get('state_dict', checkpoint)), f'checkpoint {path} does not fit the model of the '
             'config')


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Reads a checkpoint into a model, all of it; its weights may be under mmengine's key, DeiT's, or none.

    Raises:
        UserError: As of `check_fits`; nothing is read then.
    """
    checkpoint = read_checkpoint(path)
    weights = _bare(checkpoint.get('state_dict', checkpoint.get('model', checkpoint)))
    _compare(model, weights, f'checkpoint {path} does not fit the {type(model).__name__} it is for')
    model.load_state_dict(weights)


def _bare(weights: dict[str, Any]) -> dict[str, Any]:
    """Without what a wrapper for several processes adds to the names."""
    return {name.removeprefix('module.'): value for name, value in weights.items()}


def _compare(model: nn.Module, weights: dict[str, Any], complaint: str) -> None:
    wanted = (model.module if is_model_wrapper(model) else model).state_dict()
    misfits = {
        'missing': [name for name in wanted if name not in weights],
        'left over': [name for name in weights if name not in wanted],
        'of another shape': [
            name for name in wanted
            if name in weights and getattr(weights[name], 'shape', None) != wanted[name].shape],
    }
    found = [f'{len(names)} {what} ({", ".join(names[:3])}{", ..." if names[3:] else ""})'
             for what, names in misfits.items() if names]
    if found:
        raise UserError(f'{complaint}, with {len(wanted)} tensors: {"; ".join(found)}; use the config it was trained '
                        'with.')
