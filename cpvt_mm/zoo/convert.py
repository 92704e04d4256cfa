"""Converts checkpoints between the formats of several libraries, and writes checkpoints for publishing."""
import glob
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openmmlab_runs.checkpoints.reading import Weights, read_weights
from openmmlab_runs.checkpoints.restricted import is_safetensors
from openmmlab_runs.errors import UserError, as_sentence
from openmmlab_runs.files import check_free, remove_leftovers, to_bytes, whole_file
from openmmlab_runs.redaction import redact_meta

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
    found = detect_format(weights.tensors, source)
    allowed = {name: fmt for fmt in FORMATS if fmt.backbone == found.format.backbone for name in fmt.names}
    if to not in allowed:
        raise UserError(f'checkpoint {source} contains a {found.format.backbone}, which format {to} does not support: '
                        f'convert it to {", ".join(allowed)}.')
    is_safe = is_safetensors(target)
    meta, left_out = _kept_meta(weights, is_safe)
    # Tensors can have shapes and types that fail in many ways.
    with as_sentence(f'checkpoint {source} cannot be converted', f'it is damaged, or not of the format {found.format}'):
        converted = convert_weights(weights.tensors, found, allowed[to])
        if half:
            converted = {name: _to_half(name, tensor) for name, tensor in converted.items()}
        content = to_bytes(converted, True, meta.get('meta', {})) if is_safe else to_bytes(
            dict(state_dict=converted, **meta))
    _write(target, content)
    return Conversion(found, allowed[to], (*weights.left_out, *left_out))


def publish_model(source: Path, stem: Path) -> tuple[Path, tuple[str, ...]]:
    """Writes the weights and the `meta`, without secrets, to `<stem>-<first 8 digits of its SHA-256>.pth`.

    Returns the path, and the keys and secrets that were left out. A suffix .pth of `stem` is removed. Raises a
    UserError if the source cannot be read, or the target exists already or cannot be written.
    """
    stem = stem.with_suffix('') if stem.suffix == '.pth' else stem
    check_free(stem.with_name(f'{stem.name}.pth'))
    weights = read_weights(source)
    meta, left_out = _kept_meta(weights)
    content = to_bytes(dict(state_dict=weights.tensors, **meta))
    named = stem.with_name(f'{stem.name}-{hashlib.sha256(content).hexdigest()[:8]}.pth')
    remove_leftovers(stem.parent, f'{glob.escape(stem.name)}-????????.pth')
    _write(named, content)
    return named, (*weights.left_out, *left_out)


def _kept_meta(weights: Weights, as_json: bool = False) -> tuple[dict[str, Any], list[str]]:
    """Returns mmengine's entry `meta` without secrets, `{'meta': ...}`, and names of what is left out: `as_json` also
    what JSON does not hold.
    """
    if not isinstance(weights.meta.get('meta'), dict):
        return ({}, [*weights.meta]) if as_json else (weights.meta, [])
    meta, left_out = redact_meta(weights.meta['meta'])
    odd = [key for key, value in meta.items() if as_json and not _is_json(key, value)]
    return dict(meta={key: value for key, value in meta.items() if key not in odd}), [
        *left_out, *(f'meta.{key}' for key in odd)]


def _is_json(*values: Any) -> bool:
    try:
        json.dumps(values)
    except (TypeError, ValueError, RecursionError):
        return False
    return isinstance(values[0], str)


def _to_half(name: str, tensor: Tensor) -> Tensor:
    half = tensor.half() if tensor.is_floating_point() else tensor
    if not torch.equal(half.isfinite(), tensor.float().isfinite()):  # a mask may hold infinity
        raise UserError(f'{name} has values as large as {tensor.float().abs().max():g}, which float16 does not hold: '
                        'convert without --half.')
    return half


def _write(path: Path, content: bytes) -> None:
    """Writes the content of a checkpoint, and reads it back before it gets its name."""
    remove_leftovers(path.parent, glob.escape(path.name))
    try:
        with whole_file(path) as temporary:
            temporary.write_bytes(content)
            if temporary.read_bytes() != content:
                raise UserError(f'{path} was not written, because what was read back differs from what was to be '
                                'written: check the disk, then start again.')
    except OSError as error:
        raise UserError(f'{path} cannot be written ({error.strerror}): free space for it, or choose another folder.'
                        ) from error
