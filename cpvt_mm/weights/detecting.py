"""Detects the format of a checkpoint, and the prefix of its backbone, from the names of its tensors."""
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from cpvt_mm.errors import UserError

from .formats import Format
from .plain import PLAIN_FORMATS
from .pyramid import PYRAMID_FORMATS
from .reading import read_weights

FORMATS = (*PYRAMID_FORMATS, *PLAIN_FORMATS)


class Detected(NamedTuple):
    """The backbone that was found in a checkpoint.

    Attributes:
        format: The format of the names below the prefix.
        prefix: The prefix of the backbone's names: '', or a string that ends with a dot.
        others: Prefixes of other backbones in the checkpoint.
    """
    format: Format
    prefix: str
    others: tuple[str, ...]


def detect_format(names: Collection[str], path: object, prefix: str | None = None,
              wanted: Collection[str] = ()) -> Detected:
    """Finds the backbone in a checkpoint: the first one with the shortest prefix.

    Args:
        names: The names of the checkpoint's tensors.
        path: The path of the checkpoint, for the message.
        prefix: The prefix to search below, with or without the dot. Defaults to None: any prefix.
        wanted: The classes of backbones to prefer, whatever their prefix. Defaults to no preference.

    Raises:
        UserError: If no backbone is found.
    """
    if prefix is not None:
        prefix = f'{prefix.removesuffix(".")}.' if prefix else ''
    starts = [(name.removesuffix(fmt.signature[0]), fmt) for name in names for fmt in FORMATS
              if name.endswith(fmt.signature[0])]
    found = [(start, fmt) for start, fmt in starts
             if (not start or start.endswith('.')) and prefix in (None, start)
             and all(start + name in names for name in fmt.signature)]
    # A stage of a pyramid looks like a small plain transformer, so backbones inside another one do not count.
    found = [(start, fmt) for start, fmt in found
             if not any(start != other and start.startswith(other) for other, _ in found)]
    if not found:
        where = f' below {prefix!r}' if prefix else ''
        first = ', '.join(list(names)[:3])
        raise UserError(f'checkpoint {path} has no backbone of a known format{where}: it has {first}'
                        f'{", ..." if len(names) > 3 else ""}; use a checkpoint of a known format ({_known()}).')
    (start, fmt), *others = sorted(found, key=lambda pair: (pair[1].backbone not in wanted, len(pair[0])))
    return Detected(fmt, start, tuple(other for other, _ in others))


def check_backbone(path: str | Path, backbone: str) -> None:
    """Raises a UserError if a file is not a checkpoint with a backbone of that class; does not check URLs."""
    if '://' not in str(path):
        found = detect_format(read_weights(path).tensors, path, wanted=[backbone])
        if found.format.backbone != backbone:
            raise UserError(f'checkpoint {path} holds a {found.format.backbone} (format {found.format}), but must hold '
                            f'a {backbone}.')


def _known() -> str:
    return '; '.join(f'for {backbone} {", ".join(str(fmt) for fmt in FORMATS if fmt.backbone == backbone)}'
                     for backbone in ('PyramidCPVT', 'CPVT'))
