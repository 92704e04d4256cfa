"""Checkpoints to hand on: weights only, under a name that tells whether they are whole."""
import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

from cpvt_mm.files import check_free, write_checkpoint

from .reading import read_checkpoint, unwrap


def publish_model(source: Path, stem: Path) -> tuple[Path, tuple[str, ...]]:
    """Writes the weights of a checkpoint and its `meta`, and nothing else, to `<stem>-<first 8 of sha256>.pth`.

    Args:
        source: The file to read.
        stem: Folder and beginning of the name; a .pth at its end does not count.

    Returns:
        The file that was written, and the keys that were left out.

    Raises:
        UserError: If the source cannot be read, or the target is there already or has no folder.
    """
    stem = stem.with_suffix('') if stem.suffix == '.pth' else stem
    check_free(stem.with_name(f'{stem.name}.pth'))
    checkpoint = read_checkpoint(source)
    weights, key, _ = unwrap(checkpoint, source)
    meta = {'meta': checkpoint['meta']} if key and 'meta' in checkpoint else {}
    with TemporaryDirectory(dir=stem.parent) as folder:
        unnamed = Path(folder) / 'weights.pth'
        write_checkpoint(unnamed, {'state_dict': weights, **meta})
        named = stem.with_name(f'{stem.name}-{hashlib.sha256(unnamed.read_bytes()).hexdigest()[:8]}.pth')
        unnamed.replace(named)
    return named, tuple(name for name in checkpoint if key and name not in (key, *meta))
