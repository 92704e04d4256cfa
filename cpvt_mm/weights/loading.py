"""Loads a checkpoint of any known format into a backbone; raises an error if weights are missing."""
import logging
import re
from collections.abc import Container, Sequence
from pathlib import Path

from mmengine.logging import print_log
from torch import Tensor, nn

from cpvt_mm.errors import UserError

from .detecting import detect_format
from .inflation import inflate_kernels
from .plain import TABLE
from .reading import read_weights
from .released import find_released
from .stem import fit_stem


def load_pretrained(backbone: nn.Module, checkpoint: str | Path, prefix: str | None = None, map_location: str = 'cpu',
                    allow_missing: str | Sequence[str] | None = None) -> None:
    """Loads a checkpoint into a backbone; logs the format, the share of filled parameters, and unused names.

    It adapts weights to the backbone:

    - It resamples position tables of `LearnablePE` to the grid of the backbone.
    - It adapts the first convolution from RGB to other `in_channels`.
    - It inflates 2D kernels for a `PEG` with `ndim=3`: they become the middle slice.

    It warns about:

    - Tensors that the backbone does not have, such as blocks of a deeper arch.
    - Missing tensors that `allow_missing` matches.
    - A `norm_eps` that differs from that of the checkpoint's models.

    Args:
        backbone: A PyramidCPVT or CPVT.
        checkpoint: Path or address (see `fetched`) of a file in any format of `detecting.FORMATS`. It contains the
            backbone, or a model with the backbone.
        prefix: The prefix of the backbone's names in the file. Defaults to None: detected.
        map_location: The device to load to. Defaults to 'cpu'.
        allow_missing: One or more regular expressions (`re.search`). A tensor of the backbone may be missing in the
            file if its name matches one of them; it keeps its value. Defaults to None: no tensor may be missing.

    Raises:
        UserError: If the file cannot be read, has no such backbone, or lacks weights of it. The backbone is unchanged
            then.
    """
    allowed = _compile(allow_missing)
    weights, key, ema_key, *_ = read_weights(checkpoint, map_location)
    classes = [cls.__name__ for cls in type(backbone).__mro__]
    fmt, prefix, others = detect_format(weights, checkpoint, prefix, classes)
    if fmt.backbone not in classes:
        raise UserError(f'checkpoint {checkpoint} holds a {fmt.backbone} (format {fmt}), but the backbone is a '
                        f'{type(backbone).__name__}: use the other backbone, or other weights.')
    notes = [f'weights below {prefix!r}' + ''.join(f', not {other!r}' for other in others)] if prefix else []
    notes += [f'weights of {key}, not of {ema_key}'] if ema_key else []

    try:
        renamed = fmt.to_ours({name.removeprefix(prefix): tensor for name, tensor in weights.items()
                                if name.startswith(prefix)})
    except UserError as error:
        raise UserError(f'checkpoint {checkpoint} cannot be loaded: {error}') from error
    fitted, table_notes = _fit_tables(backbone, renamed)
    wanted = backbone.state_dict()
    fitted, stem_notes = fit_stem(fitted, wanted)
    fitted, kernel_notes = inflate_kernels(fitted, wanted)
    fitting = {name: tensor for name, tensor in fitted.items() if name in wanted}
    missing = [name for name in wanted if name not in fitting]
    _check(fitting, wanted, [name for name in missing if not any(pattern.search(name) for pattern in allowed)],
           f'checkpoint {checkpoint} (format {fmt})', type(backbone).__name__)
    backbone.load_state_dict(fitting, strict=False)

    used = {*fitting, *(name for name in renamed if name not in fitted)}  # the latter is a table under another name
    left_over = [name for name in weights if not name.startswith(prefix)
                 or used.isdisjoint(fmt.our_names(name.removeprefix(prefix)))]
    notes = [*notes, *table_notes, *stem_notes, *kernel_notes, f'left over: {", ".join(left_over) or "nothing"}']
    print_log(f'checkpoint {checkpoint}: format {fmt}, {_share(backbone, fitting)}; {"; ".join(notes)}', 'current')
    parts = {name.split('.')[0] for name in wanted}
    surplus = [name for name in fitted if name not in wanted and name.split('.')[0] in parts
               and name != TABLE]  # a note mentions the table already
    if surplus:
        _warn(f'checkpoint {checkpoint} is from a larger or different {type(backbone).__name__}: this backbone does '
              f'not have {len(surplus)} of its tensors: {", ".join(surplus)}')
    if missing:
        _warn(f'checkpoint {checkpoint} lacks, as allow_missing allows: {", ".join(missing)}')
    eps = getattr(backbone, 'norm_eps', None)
    released = find_released(checkpoint)
    wanted_eps = released.norm_eps if released else fmt.norm_eps
    if wanted_eps and eps and eps != wanted_eps:
        what = f'weights of {checkpoint}' if released else f'models of format {fmt}'
        _warn(f'{what} have norm_eps {wanted_eps:g}, but the backbone has {eps:g}: set norm_eps={wanted_eps:g}, unless '
              f'the weights were trained with {eps:g}.')


def check_fills_backbones(model: nn.Module, checkpoint: str | Path) -> None:
    """Checks that a checkpoint of a whole model, such as `load_from`, has all weights of this package's backbones.

    mmengine loads the weights that fit, and only warns about others. That suits heads with another number of classes,
    but it would leave a part of a backbone random.

    Raises:
        UserError: If the file does not exist, or a tensor of a backbone is missing or has another shape.
    """
    if '://' not in str(checkpoint) and not Path(checkpoint).is_file():
        raise UserError(f'load_from is {checkpoint}, but this file does not exist: check the path.')
    backbones = {name: module for name, module in model.named_modules()
                 if any(cls.__module__ == 'cpvt_mm.models.backbone' for cls in type(module).__mro__)}
    weights = read_weights(checkpoint).tensors if backbones else {}
    for prefix, backbone in backbones.items():
        wanted = backbone.state_dict()
        fitting = {name: weights[f'{prefix}.{name}'] for name in wanted if f'{prefix}.{name}' in weights}
        missing = [name for name in wanted if name not in fitting]
        if len(missing) == len(wanted):
            raise UserError(f'load_from is {checkpoint}, which has no weights below {prefix!r}: use a checkpoint of '
                            f'such a model, or load weights of a backbone alone with model.{prefix}.init_cfg='
                            "dict(type='Pretrained', checkpoint=...).")
        fitting, _ = inflate_kernels(fitting, wanted)
        _check(fitting, wanted, missing, f'load_from ({checkpoint})', type(backbone).__name__)


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
    # Rounded down, so that 100 % means all.
    tenths = 1000 * sum(size for name, size in sizes.items() if name in filled) // total
    return f"{tenths / 10} % of the backbone's {total:,} parameters filled"


def _fit_tables(backbone: nn.Module, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Resamples position tables to the backbone's grids; returns the weights and notes about changes."""
    fits = {f'{name}.table': module.fit_table for name, module in backbone.named_modules()
            if callable(getattr(module, 'fit_table', None))}
    weights, notes = dict(weights), []
    if TABLE in weights and TABLE not in backbone.state_dict():
        if len(fits) == 1:  # beside other encodings
            weights[next(iter(fits))] = weights.pop(TABLE)
        elif not fits:
            notes.append('its position table is dropped, the backbone has none')
    for name, fit_table in fits.items():
        if name in weights:
            loaded, weights[name] = weights[name], fit_table(weights[name])
            if loaded.dim() == weights[name].dim() and loaded.shape != weights[name].shape:
                notes.append(f'{name} resampled from {_grid(loaded)} to {_grid(weights[name])}')
    return weights, notes


def _grid(table: Tensor) -> str:
    return ' x '.join(map(str, table.shape[:-1]))


def _compile(allow_missing: str | Sequence[str] | None) -> list[re.Pattern[str]]:
    patterns = [allow_missing] if isinstance(allow_missing, str) else allow_missing or []
    try:
        return [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as error:
        raise UserError(f'allow_missing is {allow_missing!r}, but must be a regular expression or a list of them '
                        f'({error}).') from error


def _first(names: list[str]) -> str:
    return ', '.join(names[:3]) + (', ...' if names[3:] else '')


def _warn(text: str) -> None:
    print_log(text, 'current', logging.WARNING)
