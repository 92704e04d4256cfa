"""Writes checkpoints for publishing: weights and `meta` only, with a checksum in the file name."""
import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

from cpvt_mm.files import check_free, write_checkpoint

from .reading import read_weights


def publish_model(source: Path, stem: Path) -> tuple[Path, tuple[str, ...]]:
    """Writes only the weights and the `meta` of a checkpoint, to `<stem>-<first 8 digits of its SHA-256>.pth`.

    Args:
        source: The file to read.
        stem: Folder and beginning of the name; a suffix .pth is removed.

    Returns:
        The path of the written file, and the keys that were left out.

    Raises:
        UserError: If the source cannot be read, the target exists already, or its folder does not exist.
    """
    stem = stem.with_suffix('') if stem.suffix == '.pth' else stem
    check_free(stem.with_name(f'{stem.name}.pth'))
    weights = read_weights(source)
    with TemporaryDirectory(dir=stem.parent) as folder:
        unnamed = Path(folder) / 'weights.pth'
        write_checkpoint(unnamed, {'state_dict': weights.tensors, **weights.meta})
        named = stem.with_name(f'{stem.name}-{hashlib.sha256(unnamed.read_bytes()).hexdigest()[:8]}.pth')
        unnamed.replace(named)
    return named, weights.left_out
