"""Reads a local file of weights: of torch.save, or safetensors."""
from pathlib import Path

import torch
from torch import Tensor

from cpvt_mm.errors import UserError, first_line

from .mmengine_log import mmengine_log


def is_safetensors(path: str | Path) -> bool:
    """Returns whether a file name ends in .safetensors."""
    return str(path).endswith('.safetensors')


def parse(path: Path, safetensors: bool, map_location: str = 'cpu') -> object:
    """Reads a file: tensors, plain data and mmengine's log.

    Args:
        path: The file.
        safetensors: Whether it is one of safetensors; else it is of torch.save.
        map_location: The device to load to. Defaults to 'cpu'.

    Raises:
        UserError: If safetensors is not installed.
        Exception: If the file is damaged or contains other objects; of many types.
    """
    return _read_safetensors(path, map_location) if safetensors else _read_torch(path, map_location)


def _read_torch(path: Path, map_location: str) -> object:
    with mmengine_log():
        return torch.load(path, map_location=map_location, weights_only=True)


def _read_safetensors(path: Path, map_location: str) -> dict[str, Tensor]:
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
