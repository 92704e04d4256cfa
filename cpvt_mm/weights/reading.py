"""Reads checkpoints: only tensors and plain data, never code."""
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from mmengine.model import is_model_wrapper
from torch import Tensor, nn

from cpvt_mm.errors import MissingFile, UserError, first_line

from .fetching import fetched
from .restricted import is_safetensors, parse, to_plain

# Keys of the weights in checkpoint files. 'state_dict' is mmengine's; with EMAHook, it contains the average. 'model' is
# that of DeiT and Twins. EMA_KEYS are keys of moving averages.
KEYS = ('state_dict', 'model')
EMA_KEYS = ('ema_state_dict', 'state_dict_ema', 'model_ema', 'ema')


def check_device(name: str, device: str) -> None:
    """Raises a UserError, which begins with the name of the argument, if torch cannot use a device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # unknown, or torch is built without support for it
        raise UserError(f'{name} {device!r} cannot be used ({first_line(error)}): choose another.') from error


def read_checkpoint(path: str | Path, map_location: str = 'cpu') -> dict[str, Any]:
    """Reads a checkpoint: tensors, numbers, strings and mmengine's log, no other objects.

    Args:
        path: A path, or an address (see `fetched`). A file name that ends in .safetensors means safetensors, any other
            name a file of torch.save.
        map_location: The device to load to. Defaults to 'cpu'.

    Raises:
        MissingFile: If the file does not exist.
        UserError: If the file is damaged, or contains other objects.
    """
    what, remedy = f'checkpoint {path}', ''
    check_device('map_location', map_location)
    try:
        with fetched(path) as local:
            if local != path:  # a user may have put the cached file there, so the message names it
                what, remedy = f'{what} ({local})', '; remove this file to fetch it again'
            checkpoint = parse(Path(local), is_safetensors(path) or is_safetensors(local), map_location)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise MissingFile(f'{what} does not exist: check the path.') from error
    except pickle.UnpicklingError as error:
        # torch's message is not shown, because it advises to disable this protection.
        raise UserError(f'{what} is damaged, or contains code or objects other than tensors: save its state_dict alone'
                        f'{remedy}.') from error
    except Exception as error:  # damaged files raise errors of many types
        raise UserError(f'{what} cannot be read ({first_line(error)}): it is damaged or not a checkpoint{remedy}.'
                        ) from error
    if not isinstance(checkpoint, dict):
        raise UserError(f'{what} holds a {type(checkpoint).__name__}, but must hold a dict of tensors.')
    return checkpoint


@contextmanager
def readable(path: str | Path) -> Iterator[str]:
    """Yields a local file with the content of a checkpoint that mmengine reads with `weights_only`.

    It is the file itself, or a temporary copy in plain types, if that is a safetensors file or has mmengine's log. On
    its own, mmengine would take any downloaded file of the same name for the one at an address. For addresses and
    errors see `read_checkpoint`.
    """
    with fetched(path) as local:
        if _is_plain(local):
            yield str(local)
            return
        with TemporaryDirectory() as folder:
            copy = Path(folder, Path(local).stem).with_suffix('.pth')
            torch.save(to_plain(read_checkpoint(path)), copy)
            yield str(copy)


def _is_plain(path: str | Path) -> bool:
    """Returns whether torch reads a file with `weights_only`, in a process without allowed classes."""
    try:
        torch.load(path, map_location='meta', weights_only=True)  # reads no tensors
    except Exception:  # `read_checkpoint` finds out what it is
        return False
    return True


class Weights(NamedTuple):
    """The weights in a checkpoint.

    Attributes:
        tensors: The weights by name.
        key: The key of the weights in the checkpoint; '' if the checkpoint itself is the state dict.
        ema_key: The key of other weights that were not used, usually a moving average; '' if there are none.
        meta: mmengine's entry `meta` of the checkpoint, as `{'meta': ...}`; empty if there is none.
        left_out: All other keys of the checkpoint, such as the optimizer's.
    """
    tensors: dict[str, Tensor]
    key: str
    ema_key: str
    meta: dict[str, Any]
    left_out: tuple[str, ...]


def unwrap(checkpoint: dict[str, Any], path: str | Path) -> Weights:
    """Finds the weights in a checkpoint: under the first existing key of KEYS and EMA_KEYS, or at the top level.

    Raises:
        UserError: If there are no weights.
    """
    held = [key for key in (*KEYS, *EMA_KEYS) if isinstance(checkpoint.get(key), dict)]
    key = held[0] if held else ''
    values = checkpoint[key] if key else checkpoint
    tensors = _bare({name: value for name, value in values.items() if isinstance(name, str)
                     and isinstance(value, Tensor)})
    if not tensors:
        where = f'under {key!r}' if key else f'and none of the keys {", ".join((*KEYS, *EMA_KEYS))}'
        has = ', '.join(map(str, list(values)[:3])) or 'nothing'
        raise UserError(f'checkpoint {path} holds no tensors {where}: it has {has}.')
    ema_key = next((other for other in held if other in EMA_KEYS and other != key), '')
    meta = {'meta': checkpoint['meta']} if key and 'meta' in checkpoint else {}
    left_out = [name for name, value in checkpoint.items()
                if (name not in (key, *meta) if key else not isinstance(value, Tensor))]
    return Weights(tensors, key, ema_key, meta, tuple(map(str, left_out)))


def read_weights(path: str | Path, map_location: str = 'cpu') -> Weights:
    """Reads the weights of a checkpoint; see `read_checkpoint` and `unwrap`."""
    return unwrap(read_checkpoint(path, map_location), path)


def check_fits(model: nn.Module, path: str | Path, checkpoint: dict[str, Any] | None = None) -> None:
    """Compares a checkpoint's names and shapes with a model's; mmengine would only warn about differences.

    It reads the file, unless its content is given.

    Raises:
        UserError: If there is no state dict, or a parameter or buffer is missing, left over or of another shape.
    """
    checkpoint = read_checkpoint(path) if checkpoint is None else checkpoint
    # `unwrap` is not used, because mmengine reads no other key than 'state_dict'.
    weights = checkpoint.get('state_dict', checkpoint)
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        has = 'keys that are no names' if isinstance(weights, dict) else f'a {type(weights).__name__}'
        raise UserError(f'checkpoint {path} has {has} for its state dict, but must have a dict of tensors by name: use '
                        'a checkpoint of the model of the config.')
    _compare(model, _bare(weights), f'checkpoint {path} does not fit the model of the config')


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Loads a checkpoint into a model; the names must be equal. See `unwrap` for the keys of the weights.

    Raises:
        UserError: If a parameter or buffer is missing, left over or of another shape. The model is unchanged then.
    """
    weights = read_weights(path).tensors
    _compare(model, weights, f'checkpoint {path} does not fit the {type(model).__name__} it is for')
    model.load_state_dict(weights)


def _bare(weights: dict[str, Any]) -> dict[str, Any]:
    """Removes the prefix 'module.' that DistributedDataParallel adds to the names."""
    return {name.removeprefix('module.'): value for name, value in weights.items()}


def _compare(model: nn.Module, weights: dict[str, Any], complaint: str) -> None:
    inner: nn.Module = model.module if is_model_wrapper(model) else model  # type: ignore[assignment]  # any attribute
    wanted = inner.state_dict()
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
