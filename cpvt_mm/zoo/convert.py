"""Converts checkpoints between the formats of several libraries."""
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from openmmlab_tools.checkpoints.publishing import public_meta, write_checkpoint
from openmmlab_tools.checkpoints.reading import read_weights
from openmmlab_tools.checkpoints.restricted import is_safetensors
from openmmlab_tools.errors import UserError, as_sentence
from openmmlab_tools.files import check_free, to_bytes

from .families import FORMATS, Detected, detect_format
from .renaming import Format

SUFFIXES = ('.pth', '.pt', '.safetensors')
TARGETS = tuple(dict.fromkeys(name for fmt in FORMATS for name in fmt.names))


class Conversion(NamedTuple):
    """The result of a conversion: the detected format and prefix, the written format, and keys that were left out."""
    source: Detected
    target: Format
    left_out: tuple[str, ...]


def convert_weights(weights: dict[str, Tensor], source: Detected, target: Format) -> dict[str, Tensor]:
    """Renames the backbone's tensors below the prefix of `source`; a UserError tells if a format cannot hold them."""
    prefix = source.prefix
    backbone = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    if source.format is not target:
        backbone = target.to_theirs(source.format.to_ours(backbone))
    rest = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
    return {**{prefix + name: tensor for name, tensor in backbone.items()}, **rest}


def convert_checkpoint(source: Path, target: Path, to: str = 'cpvt_mm', half: bool = False) -> Conversion:
    """Reads a checkpoint of any known format and writes its weights and its `meta` in another format.

    Args:
        source: The file to read.
        target: The .pth, .pt or .safetensors file to write; the last one holds of
            `meta` only what JSON can express, such as classes.
        to: One of TARGETS. Defaults to 'cpvt_mm'.
        half: Whether to round floating-point numbers to float16. Defaults to False.

    Raises:
        UserError: If the source cannot be read or converted, `half` cannot hold a value, the suffix of the target is
            not one of SUFFIXES, or it exists already or cannot be written.
    """
    if target.suffix not in SUFFIXES:
        raise UserError(f'{target} is not a name for a checkpoint: use the suffix .pth or .safetensors.')
    check_free(target)
    weights = read_weights(source)
    detected = detect_format(weights.tensors, source)
    allowed = {name: fmt for fmt in FORMATS if fmt.backbone == detected.format.backbone for name in fmt.names}
    if to not in allowed:
        raise UserError(f'checkpoint {source} contains a {detected.format.backbone}, which format {to} does not '
                        f'support: convert it to {", ".join(allowed)}.')
    is_safe = is_safetensors(target)
    meta, left_out = public_meta(weights, is_safe)
    # Tensors can have shapes and types that fail in many ways.
    with as_sentence(f'checkpoint {source} cannot be converted',
                     f'it is damaged, or not of the format {detected.format}'):
        converted = convert_weights(weights.tensors, detected, allowed[to])
        if half:
            converted = {name: _to_half(name, tensor) for name, tensor in converted.items()}
        content = to_bytes(converted, True, meta.get('meta', {})) if is_safe else to_bytes(
            dict(state_dict=converted, **meta))
    write_checkpoint(target, content)
    return Conversion(detected, allowed[to], (*weights.left_out, *left_out))


def _to_half(name: str, tensor: Tensor) -> Tensor:
    half = tensor.half() if tensor.is_floating_point() else tensor
    if not torch.equal(half.isfinite(), tensor.float().isfinite()):  # a mask may hold infinity
        raise UserError(f'{name} has values as large as {tensor.float().abs().max():g}, which float16 does not hold: '
                        'convert without --half.')
    return half
