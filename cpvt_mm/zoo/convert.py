"""Converts checkpoints of other libraries to the names here."""
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from openmmlab_tools.checkpoints.publishing import public_meta, write_checkpoint
from openmmlab_tools.checkpoints.reading import read_weights
from openmmlab_tools.checkpoints.restricted import is_safetensors
from openmmlab_tools.errors import UserError, as_sentence
from openmmlab_tools.files import check_free, to_bytes

from .families import Detected, detect_format

SUFFIXES = ('.pth', '.pt', '.safetensors')


class Conversion(NamedTuple):
    """The result of a conversion."""
    source: Detected  # the format and the prefix that were detected
    left_out: tuple[str, ...]  # keys of the source that were not written, such as 'optimizer'


def convert_weights(weights: dict[str, Tensor], source: Detected) -> dict[str, Tensor]:
    """Returns weights with the names here below the prefix of `source`; other names stay.

    Raises a UserError if the backbone has parts that the backbone here does not have.
    """
    backbone = {name.removeprefix(source.prefix): tensor for name, tensor in weights.items()
                if name.startswith(source.prefix)}
    others = {name: tensor for name, tensor in weights.items() if not name.startswith(source.prefix)}
    translated = source.format.translate(backbone)
    return {**{source.prefix + name: tensor for name, tensor in translated.items()}, **others}


def convert_checkpoint(source: Path, target: Path, half: bool = False) -> Conversion:
    """Reads a checkpoint in any known format, and writes its weights with this project's names, and its `meta`.

    Args:
        source: The file to read.
        target: The .pth, .pt or .safetensors file to write. A .safetensors file contains only the entries of `meta`
            that JSON can express, such as classes.
        half: Whether to round floating-point numbers to float16. Defaults to False.

    Raises:
        UserError: If the source cannot be read or converted, a value is too large for float16, or the target has
            another suffix, exists, or cannot be written.
    """
    if target.suffix not in SUFFIXES:
        raise UserError(f'{target} is not a name for a checkpoint: use the suffix .pth or .safetensors.')
    check_free(target)
    weights = read_weights(source)
    detected = detect_format(weights.tensors, source)
    is_safe = is_safetensors(target)
    meta, left_out = public_meta(weights, is_safe)
    # Tensors can have shapes and types that fail in many ways.
    with as_sentence(f'checkpoint {source} cannot be converted',
                     f'it is damaged, or not of the format {detected.format}'):
        converted = convert_weights(weights.tensors, detected)
        if half:
            converted = {name: _to_half(name, tensor) for name, tensor in converted.items()}
        content = to_bytes(converted, True, meta.get('meta', {})) if is_safe else to_bytes(
            dict(state_dict=converted, **meta))
    write_checkpoint(target, content)
    return Conversion(detected, (*weights.left_out, *left_out))


def _to_half(name: str, tensor: Tensor) -> Tensor:
    half = tensor.half() if tensor.is_floating_point() else tensor
    if not torch.equal(half.isfinite(), tensor.float().isfinite()):  # a mask may hold infinity
        raise UserError(f'{name} has values as large as {tensor.float().abs().max():g}, which float16 does not hold: '
                        'convert without --half.')
    return half
