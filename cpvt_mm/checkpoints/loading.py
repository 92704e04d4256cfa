"""Weights of any known format into a backbone: all of them, or an error."""
from __future__ import annotations

import logging
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mmengine.logging import print_log
from torch import Tensor, nn

from cpvt_mm.errors import UserError
from cpvt_mm.models.grid import resample
from cpvt_mm.models.position_encodings.tables import LearnablePE

from .detecting import detect_format
from .plain import TABLE
from .reading import read_checkpoint, unwrap

if TYPE_CHECKING:
    from cpvt_mm.models.backbones.base import Backbone


def load_pretrained(backbone: Backbone, checkpoint: str | Path, prefix: str | None = None, map_location: str = 'cpu',
                    allow_missing: str | Sequence[str] | None = None) -> None:
    """Reads a checkpoint into a backbone, and logs the format, the share filled, and each name left over or missing.

    Position tables of `LearnablePE` are resampled where the backbone's have another grid. What is left over of the
    backbone itself, such as blocks of a deeper arch or another position encoding, is also a warning.

    Args:
        backbone: A PyramidCPVT or CPVT.
        checkpoint: Path or URL of a file of any format in `detecting.FORMATS`, of the backbone or a model with it.
        prefix: What is in front of the backbone's names in the file. Defaults to None: found.
        map_location: The device to read to. Defaults to 'cpu'.
        allow_missing: Regular expressions; what of the backbone the file lacks must match one of them (`re.search`),
            and stays as it is. Defaults to None: nothing may be missing.

    Raises:
        UserError: If the file cannot be read, has no such backbone, or does not fill it. Nothing is changed then.
    """
    allowed = _compile(allow_missing)
    weights, key, ema_key = unwrap(read_checkpoint(checkpoint, map_location), checkpoint)
    classes = [cls.__name__ for cls in type(backbone).__mro__]
    fmt, prefix, others = detect_format(weights, checkpoint, prefix, classes)
    if fmt.backbone not in classes:
        raise UserError(f'checkpoint {checkpoint} holds a {fmt.backbone} (format {fmt}), but the backbone is a '
                        f'{type(backbone).__name__}: take the other backbone, or other weights.')
    notes = [f'weights below {prefix!r}' + ''.join(f', not {other!r}' for other in others)] if prefix else []
    notes += [f'weights of {key}, not of {ema_key}'] if ema_key else []

    try:
        renamed = fmt.to_ours({name.removeprefix(prefix): tensor for name, tensor in weights.items()
                                if name.startswith(prefix)})
    except UserError as error:
        raise UserError(f'checkpoint {checkpoint} cannot be loaded: {error}') from error
    # A backbone with norm_eps='auto' keeps what it was trained with.
    norm_eps = round(float(renamed.pop('norm_eps')), 12) if 'norm_eps' in renamed else fmt.norm_eps
    fitted, table_notes = _fit_tables(backbone, renamed)
    wanted = {name: tensor for name, tensor in backbone.state_dict().items() if name != 'norm_eps'}
    fitting = {name: tensor for name, tensor in fitted.items() if name in wanted}
    missing = [name for name in wanted if name not in fitting]
    _check(fitting, wanted, [name for name in missing if not any(pattern.search(name) for pattern in allowed)],
           f'checkpoint {checkpoint} (format {fmt})', type(backbone).__name__)
    backbone.load_state_dict(fitting, strict=False)

    used = {*fitting, 'norm_eps', *(name for name in renamed if name not in fitted)}  # the last: a table that was moved
    left_over = [name for name in weights if not name.startswith(prefix)
                 or used.isdisjoint(fmt.our_names(name.removeprefix(prefix)))]
    notes = [*notes, *table_notes, f'left over: {", ".join(left_over) or "nothing"}']
    print_log(f'checkpoint {checkpoint}: format {fmt}, {_share(backbone, fitting)}; {"; ".join(notes)}', 'current')
    parts = {name.split('.')[0] for name in wanted}
    surplus = [name for name in fitted if name not in wanted and name.split('.')[0] in parts
               and name != TABLE]  # of which there is a note
    if surplus:
        print_log(f'checkpoint {checkpoint} is of a larger or another {type(backbone).__name__}: this one has no place '
                  f'for {len(surplus)} of its tensors: {", ".join(surplus)}', 'current', logging.WARNING)
    if missing:
        print_log(f'checkpoint {checkpoint} lacks, as allow_missing allows: {", ".join(missing)}', 'current',
                  logging.WARNING)
    backbone.meet_norm_eps(norm_eps, str(fmt))


def _check(fitting: dict[str, Tensor], wanted: dict[str, Tensor], missing: list[str], what: str, where: str) -> None:
    misshapen = [f'{name} {tuple(tensor.shape)} instead of {tuple(wanted[name].shape)}'
                 for name, tensor in fitting.items() if tensor.shape != wanted[name].shape]
    if misshapen:
        raise UserError(f'{what} does not fit the {where}, {len(misshapen)} of its tensors have another shape: '
                        f'{_first(misshapen)}; use the arch that it was trained with.')
    if missing:
        raise UserError(f'{what} lacks {len(missing)} of the {len(wanted)} tensors of the {where}: {_first(missing)}; '
                        'use weights that have them, or name them in allow_missing, a regular expression such as '
                        "'position_encoding'.")


def _share(backbone: nn.Module, filled: Container[str]) -> str:
    sizes = {name: parameter.numel() for name, parameter in backbone.named_parameters()}
    total = sum(sizes.values())
    # Rounded down: 100 % are all.
    tenths = 1000 * sum(size for name, size in sizes.items() if name in filled) // total
    return f"{tenths / 10} % of the backbone's {total:,} parameters filled"


def _fit_tables(backbone: Backbone, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """The weights with position tables as the backbone's are, and what to say of it."""
    tables = {f'{name}.table': module.table for name, module in backbone.named_modules()
              if isinstance(module, LearnablePE)}
    weights, notes = dict(weights), []
    if TABLE in weights and TABLE not in backbone.state_dict():
        if len(tables) == 1:  # beside other encodings
            weights[next(iter(tables))] = weights.pop(TABLE)
        elif not tables:
            notes.append('its position table is dropped, the backbone has none')
    for name, table in tables.items():
        loaded = weights.get(name)
        if loaded is None or loaded.shape == table.shape or loaded.shape[-1] != table.shape[-1]:
            continue
        if loaded.dim() == table.dim() == 3:
            weights[name] = resample(loaded, tuple(table.shape[:2]))
            notes.append(f'{name} resampled from {loaded.shape[0]} x {loaded.shape[1]} to {table.shape[0]} x '
                         f'{table.shape[1]}')
        elif loaded.dim() == 3:  # into a sequence
            weights[name] = loaded.flatten(0, 1)
    return weights, notes


def _compile(allow_missing: str | Sequence[str] | None) -> list[re.Pattern[str]]:
    patterns = [allow_missing] if isinstance(allow_missing, str) else allow_missing or []
    try:
        return [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as error:
        raise UserError(f'allow_missing is {allow_missing!r}, but must be a regular expression or a list of them '
                        f'({error}).') from error


def _first(names: list[str]) -> str:
    return ', '.join(names[:3]) + (', ...' if names[3:] else '')
