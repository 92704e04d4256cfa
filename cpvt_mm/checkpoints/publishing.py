"""Writes checkpoints to hand on: weights only, with a checksum in the name."""
import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

from cpvt_mm.files import check_free, write_checkpoint

from .reading import read_weights


def publish_model(source: Path, stem: Path) -> tuple[Path, tuple[str, ...]]:
    """Writes the weights of a checkpoint and its `meta`, and nothing else, to `<stem>-<first 8 of sha256>.pth`.

    Args:
        source: The file to read.
        stem: Folder and beginning of the name; a .pth at its end is dropped.

    Returns:
        The file that was written, and the keys that were left out.

    Raises:
        UserError: If the source cannot be read, or the target is there already or has no folder.
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
