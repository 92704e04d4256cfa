"""Converts checkpoints from one library's names to another's."""
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from cpvt_mm.errors import UserError
from cpvt_mm.files import check_free, write_checkpoint

from .detecting import FORMATS, Detected, detect_format
from .formats import Format
from .reading import is_safetensors, read_weights

SUFFIXES = ('.pth', '.pt', '.safetensors')
TARGETS = tuple(dict.fromkeys(name for fmt in FORMATS for name in fmt.names))


class Conversion(NamedTuple):
    """The result of a conversion.

    Attributes:
        source: The format that was found in the file, and where.
        target: The format it was converted to.
        left_out: Keys of the file that were not written, such as the optimizer's.
    """
    source: Detected
    target: Format
    left_out: tuple[str, ...]


def convert_weights(weights: dict[str, Tensor], source: Detected, target: Format) -> dict[str, Tensor]:
    """Renames the backbone below the prefix of `source`; all other tensors stay as they are.

    Raises:
        UserError: If one of the formats cannot hold the backbone.
    """
    prefix = source.prefix
    backbone = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    if source.format is not target:
        backbone = target.to_theirs(source.format.to_ours(backbone))
    rest = {name: tensor for name, tensor in weights.items() if not name.startswith(prefix)}
    return {**{prefix + name: tensor for name, tensor in backbone.items()}, **rest}


def convert_checkpoint(source: Path, target: Path, to: str = 'cpvt_mm') -> Conversion:
    """Reads a checkpoint of any known format and writes its weights, and its `meta`, in another.

    Args:
        source: The file to read.
        target: The file to write: a .safetensors, which holds no `meta`, or else a .pth or .pt of torch.save, which
            holds the weights under `state_dict`.
        to: One of TARGETS. Defaults to 'cpvt_mm'.

    Raises:
        UserError: If the source cannot be read or converted, or the target has another suffix than SUFFIXES, is there
            already or has no folder.
    """
    if target.suffix not in SUFFIXES:
        raise UserError(f'{target} is no name of a checkpoint: end it in .pth or .safetensors.')
    check_free(target)
    weights = read_weights(source)
    found = detect_format(weights.tensors, source)
    allowed = [fmt for fmt in FORMATS if fmt.backbone == found.format.backbone]
    fmt = next((fmt for fmt in allowed if to in fmt.names), None)
    if fmt is None:
        raise UserError(f'checkpoint {source} holds a {found.format.backbone}, which {to} does not know: convert it to '
                        f'{", ".join(name for fmt in allowed for name in fmt.names)}.')
    converted = convert_weights(weights.tensors, found, fmt)
    if is_safetensors(target):
        write_checkpoint(target, converted)
        return Conversion(found, fmt, (*weights.left_out, *weights.meta))
    write_checkpoint(target, {'state_dict': converted, **weights.meta})
    return Conversion(found, fmt, weights.left_out)
