"""Writes checkpoints for publishing: the weights, and what training tells of them, without secrets."""
import glob
import hashlib
import json
from pathlib import Path
from typing import Any

from openmmlab_tools.errors import UserError
from openmmlab_tools.files import check_free, remove_leftovers, to_bytes, whole_file
from openmmlab_tools.redaction import redact_meta

from .reading import Weights, read_weights


def publish_model(source: Path, stem: Path) -> tuple[Path, tuple[str, ...]]:
    """Writes the weights and `meta` of a checkpoint to a new file, without optimizer, other state and secrets.

    Args:
        source: The checkpoint.
        stem: The beginning of the new name; a suffix .pth is removed. The file has the name `<stem>-<digits>.pth`, with
            the first 8 digits of its SHA-256.

    Returns:
        The path, and the keys and secrets that were left out.

    Raises:
        UserError: If the source cannot be read, or the target exists or cannot be written.
    """
    stem = stem.with_suffix('') if stem.suffix == '.pth' else stem
    check_free(stem.with_name(f'{stem.name}.pth'))
    weights = read_weights(source)
    meta, left_out = public_meta(weights)
    content = to_bytes(dict(state_dict=weights.tensors, **meta))
    named = stem.with_name(f'{stem.name}-{hashlib.sha256(content).hexdigest()[:8]}.pth')
    remove_leftovers(stem.parent, f'{glob.escape(stem.name)}-????????.pth')
    write_checkpoint(named, content)
    return named, (*weights.left_out, *left_out)


def public_meta(weights: Weights, as_json: bool = False) -> tuple[dict[str, Any], list[str]]:
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


def write_checkpoint(path: Path, content: bytes) -> None:
    """Writes a checkpoint to a temporary name, reads it back, and then renames it."""
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
