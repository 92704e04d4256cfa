"""All families together: what is known by a name, and what the tensors of a checkpoint tell."""
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from cpvt_mm.registry import FUNCTIONS
from openmmlab_tools.checkpoints.fetching import Source
from openmmlab_tools.errors import UserError, did_you_mean

from . import deit, dino, pvt, rope_vit, twins
from .members import APACHE, PVT, PVTV2, RELEASED, SCHEME, Member
from .plain import PLAIN
from .pyramid import OURS
from .renaming import Format

# If several formats fit, the last one is the most specific.
FORMATS: tuple[Format, ...] = (
    OURS, *twins.FORMATS, *pvt.FORMATS, PLAIN, *deit.FORMATS, *dino.FORMATS, *rope_vit.FORMATS)
# Classes of mmdet, mmseg and mmpretrain that compute the same -> how names of archs begin, and other arguments.
SAME_CLASSES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    'PCPVT': ('', {}), 'PyramidVisionTransformer': ('pvt-', PVT), 'PyramidVisionTransformerV2': ('pvtv2-', PVTV2),
    'MixVisionTransformer': ('mit-', PVTV2)}


class Detected(NamedTuple):
    """The backbone in a checkpoint: its format, its prefix ('' or with a dot at the end), and prefixes of others."""
    format: Format
    prefix: str
    others: tuple[str, ...]


def detect_format(names: Collection[str], path: object, prefix: str | None = None, preferred: str = '') -> Detected:
    """Finds the backbone in a checkpoint by the names of its tensors. If there are several, the shortest prefix is
    used.

    If a `prefix` is given, with or without its dot, only names with this prefix are searched. If there are backbones of
    both classes, the `preferred` class comes first, 'PyramidCPVT' or 'CPVT'.

    Raises:
        UserError: If there is no backbone. The message contains `path`.
    """
    if prefix is not None:
        prefix = f'{prefix.removesuffix(".")}.' if prefix else ''
    starts = [(name.removesuffix(fmt.signature[0]), fmt) for name in names for fmt in FORMATS
              if name.endswith(fmt.signature[0])]
    # If several formats fit below a prefix, the last one is the most specific.
    backbones = list({start: fmt for start, fmt in starts
                  if (not start or start.endswith('.')) and prefix in (None, start)
                  and fmt.matches(names, start)}.items())
    # A stage of a pyramid looks like a small plain transformer, so backbones inside another one do not count.
    backbones = [(start, fmt) for start, fmt in backbones
             if not any(start != other and start.startswith(other) for other, _ in backbones)]
    if not backbones:
        where = f' below {prefix!r}' if prefix else ''
        first = ', '.join(list(names)[:3])
        raise UserError(f'checkpoint {path} has no backbone of a known format{where}: it has {first}'
                        f'{", ..." if len(names) > 3 else ""}; use a checkpoint of a known format ({_known()}).')
    (start, fmt), *others = sorted(backbones, key=lambda pair: (pair[1].backbone != preferred, len(pair[0])))
    return Detected(fmt, start, tuple(other for other, _ in others))


def _known() -> str:
    return '; '.join(f'for {backbone} {", ".join(str(fmt) for fmt in FORMATS if fmt.backbone == backbone)}'
                     for backbone in dict.fromkeys(fmt.backbone for fmt in FORMATS))


def find_released(checkpoint: str | Path) -> Member | None:
    """Returns the weights for `cpvt_mm://<name>` (a UserError if it is unknown) or one of their addresses; or None."""
    address = str(checkpoint)
    if not address.startswith(SCHEME):
        return next((released for released in RELEASED.values() if address in released.files), None)
    name = address.removeprefix(SCHEME)
    if name not in RELEASED:
        raise UserError(f'checkpoint {address} is not among the released weights{did_you_mean(name, RELEASED)}; there '
                        f'are {", ".join(SCHEME + known for known in RELEASED)}.')
    return RELEASED[name]


@FUNCTIONS.register_module()
def source_of_weights(address: str) -> Source | None:
    """Tells `openmmlab_tools` where weights lie, and under which terms."""
    released = find_released(address)
    return released and Source(released.files, None if released.licence == APACHE else released.licence)
