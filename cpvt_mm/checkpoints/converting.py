"""Checkpoints from one library's names to another's."""
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from cpvt_mm.errors import UserError
from cpvt_mm.files import check_free, write_checkpoint

from .detecting import FORMATS, Detected, detect_format
from .formats import Format
from .reading import is_safetensors, read_checkpoint, unwrap

TARGETS = tuple(dict.fromkeys(name for fmt in FORMATS for name in fmt.names))


class Conversion(NamedTuple):
    """What a conversion did.

    Attributes:
        source: What was recognised in the file, and where.
        target: The format it was converted to.
        left_out: Keys of the file that were not written, such as the optimizer's.
    """
    source: Detected
    target: Format
    left_out: tuple[str, ...]


def convert_weights(weights: dict[str, Tensor], source: Detected, target: Format) -> dict[str, Tensor]:
    """Renames the backbone below the prefix of `source`; all other tensors stay as they are.

    Raises:
        UserError: As of the formats.
    """
    prefix = source.prefix
    backbone = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    if source.format is not target:
        backbone = source.format.to_ours(backbone)
        backbone.pop('norm_eps', None)  # that of norm_eps='auto', which only this project's models have
        backbone = target.to_theirs(backbone)
    rest = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
    return {**{prefix + name: tensor for name, tensor in backbone.items()}, **rest}


def convert_checkpoint(source: Path, target: Path, to: str = 'cpvt_mm') -> Conversion:
    """Reads a checkpoint of any known format and writes its weights, and its `meta`, in another.

    Args:
        source: The file to read.
        target: The file to write: .safetensors, which holds no `meta`, or else of torch.save, under `state_dict`.
        to: One of TARGETS. Defaults to 'cpvt_mm'.

    Raises:
        UserError: If the source cannot be read or converted, or the target is there already or has no folder.
    """
    check_free(target)
    checkpoint = read_checkpoint(source)
    weights, key, _ = unwrap(checkpoint, source)
    found = detect_format(weights, source)
    allowed = [fmt for fmt in FORMATS if fmt.backbone == found.format.backbone]
    fmt = next((fmt for fmt in allowed if to in fmt.names), None)
    if fmt is None:
        raise UserError(f'checkpoint {source} holds a {found.format.backbone}, which {to} does not know: convert it to '
                        f'{", ".join(name for fmt in allowed for name in fmt.names)}.')
    content = convert_weights(weights, found, fmt)
    meta = {'meta': checkpoint['meta']} if key and 'meta' in checkpoint and not is_safetensors(target) else {}
    write_checkpoint(target, content if is_safetensors(target) else {'state_dict': content, **meta})
    left_out = [name for name in checkpoint if name not in (key, *meta)] if key else [
        name for name in checkpoint if not isinstance(checkpoint[name], Tensor)]
    left_out += [name for name in (f'{found.prefix}norm_eps',) if name in weights and name not in content]
    return Conversion(found, fmt, tuple(left_out))
