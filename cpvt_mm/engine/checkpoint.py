"""Reading checkpoints: tensors only, and never in part without a word."""
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.model import is_model_wrapper
from mmengine.runner import CheckpointLoader
from torch import nn

from cpvt_mm.errors import UserError, first_line


def allow_message_hub() -> None:
    """Lets torch.load resume mmengine's checkpoints, which hold logged numbers beside tensors.

    torch >= 2.6 reads tensors and classes on a list only (weights_only); mmengine 0.10.7 puts none on it.
    """
    if hasattr(torch.serialization, 'add_safe_globals'):
        scalar, _ = np.float64(0).__reduce__()
        array, *_ = np.zeros(0).__reduce__()
        dtypes = [type(np.dtype(code)) for code in ('f4', 'f8', 'i4', 'i8')]
        torch.serialization.add_safe_globals([HistoryBuffer, scalar, array, np.ndarray, np.dtype, *dtypes])


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Reads a checkpoint (a path or a URL) to the CPU.

    Raises:
        UserError: If there is no such file, or it is no checkpoint.
    """
    try:
        checkpoint = CheckpointLoader.load_checkpoint(str(path), map_location='cpu')
    except FileNotFoundError as error:
        raise UserError(f'checkpoint {path} does not exist: check the path.') from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise UserError(f'checkpoint {path} cannot be read ({first_line(error)}): it is damaged, or holds more than '
                        'tensors.') from error
    if not isinstance(checkpoint, dict):
        raise UserError(f'checkpoint {path} holds a {type(checkpoint).__name__}, but must hold a dict of tensors.')
    return checkpoint


def check_fits(model: nn.Module, path: str | Path) -> None:
    """Compares a checkpoint's names and shapes with a model's; mmengine would load what fits and go on.

    Raises:
        UserError: If a parameter or buffer is missing, left over or of another shape.
    """
    checkpoint = read_checkpoint(path)
    weights = {name.removeprefix('module.'): value for name, value in checkpoint.get('state_dict', checkpoint).items()}
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
        raise UserError(f'checkpoint {path} does not fit the model of the config, with {len(wanted)} tensors: '
                        f'{"; ".join(found)}; use the config it was trained with.')
