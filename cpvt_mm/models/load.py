"""Loads weights of any known format into a backbone."""
import logging
import re
from collections.abc import Container, Sequence
from pathlib import Path

from mmengine.logging import print_log
from torch import Tensor, nn

from cpvt_mm.encodings import LearnablePE, PositionEncoding
from cpvt_mm.weights.formats import detect_format
from cpvt_mm.weights.plain_formats import REGISTERS, PlainFormat
from cpvt_mm.weights.released import find_released
from cpvt_mm.weights.renaming import POSITION_TABLE
from cpvt_mm.zoo.families import name_of
from openmmlab_runs.checkpoints.fitting import compare, refuse
from openmmlab_runs.checkpoints.reading import read_weights
from openmmlab_runs.config_text import to_source
from openmmlab_runs.errors import UserError

STEM = 'patch_embed.proj.weight'
BLOCK = re.compile(r'(stages\.\d+\.)?blocks\.\d+\.')


def load_pretrained(backbone: nn.Module, checkpoint: str | Path, prefix: str | None = None, map_location: str = 'cpu',
                    allow_missing: str | Sequence[str] | None = None) -> None:
    """Loads a checkpoint into a backbone; logs the format, the share of filled parameters, and unused names.

    It resamples position tables of `LearnablePE`, adapts the first convolution from RGB to other `in_channels`, and
    inflates 2D kernels for a `PEG` with `ndim=3`. It warns of tensors that the backbone does not have, such as blocks
    of a deeper arch; of missing tensors that `allow_missing` matches; of another `norm_eps`; and of weights that were
    trained with a rotary encoding that the backbone does not have.

    Args:
        backbone: A PyramidCPVT or CPVT.
        checkpoint: Path or address (see `checkpoints.fetching.fetched`) of a file of a backbone, or of a model with it,
            in any of `weights.formats.FORMATS`.
        prefix: The prefix of the backbone's names in the file. Defaults to None: detected.
        map_location: The device to load to. Defaults to 'cpu'.
        allow_missing: One or more regular expressions (`re.search`). Tensors whose names match may be missing in the
            file, and keep their values. Defaults to None: none.

    Raises:
        MissingFile: If the file does not exist.
        UserError: If the backbone is on the meta device; or, with the backbone unchanged, the file cannot be read, has
            no such backbone, lacks weights of it, or has weights of the same blocks or registers that it does not have.
    """
    allowed = _compile(allow_missing)
    weights, key, ema_key, *_ = read_weights(checkpoint, map_location)
    wanted = backbone.state_dict()
    if any(tensor.is_meta for tensor in wanted.values()):
        raise UserError(f'the {type(backbone).__name__} is on the meta device, which holds no weights: build it on '
                        'another device.')
    own = detect_format(wanted, 'of the backbone', '').format.backbone
    fmt, prefix, others = detect_format(weights, checkpoint, prefix, own)
    if fmt.backbone != own:
        raise UserError(f'checkpoint {checkpoint} holds a {fmt.backbone} (format {fmt}), but the backbone is a '
                        f'{type(backbone).__name__}: use the other backbone, or other weights.')
    try:
        renamed = fmt.to_ours({name.removeprefix(prefix): tensor for name, tensor in weights.items()
                               if name.startswith(prefix)})
    except UserError as error:
        raise UserError(f'checkpoint {checkpoint} cannot be loaded: {error}') from error
    arch, own_arch = name_of(renamed), name_of(wanted)
    sizes = f', of arch {arch!r} for a backbone of {own_arch!r},' if arch and own_arch and arch != own_arch else ''
    what = f'checkpoint {checkpoint} (format {fmt}){sizes}'
    fitted, adapted = _adapt(backbone, renamed, wanted)
    missing = [name for name in wanted if name not in fitted]
    blocks = {match[0] for match in map(BLOCK.match, wanted) if match}
    # What would change what the layers compute: registers, and more parameters in the same block.
    held = {name: tensor for name, tensor in fitted.items() if name in wanted or name == REGISTERS
            or ((match := BLOCK.match(name)) and match[0] in blocks)}
    check_filled(held, wanted, [name for name in missing if not any(pattern.search(name) for pattern in allowed)], what,
                 backbone)
    backbone.load_state_dict(held, strict=False)

    used = {*held, *(name for name in renamed if name not in fitted)}  # the latter is a table under another name
    left_over = [name for name in weights if not name.startswith(prefix)
                 or used.isdisjoint(fmt.our_names(name.removeprefix(prefix)))]
    notes = [f'weights below {prefix!r}' + ''.join(f', not {other!r}' for other in others)] if prefix else []
    notes += [f'weights of {key}, not of {ema_key}'] if ema_key else []
    notes += [*adapted, f'left over: {", ".join(left_over) or "nothing"}']
    print_log(f'checkpoint {checkpoint}: format {fmt}, {_share(backbone, held)}; {"; ".join(notes)}', 'current')
    parts = {name.split('.')[0] for name in wanted}
    surplus = [name for name in fitted if name not in wanted and name.split('.')[0] in parts
               and not POSITION_TABLE.fullmatch(name)]  # a note mentions the table already
    if surplus:
        _warn(f'{what} is from a larger or different {type(backbone).__name__}: this backbone does not '
              f'have {len(surplus)} of its tensors: {", ".join(surplus)}')
    if missing:
        _warn(f'checkpoint {checkpoint} lacks, as allow_missing allows: {", ".join(missing)}')
    eps = getattr(backbone, 'norm_eps', None)
    released = find_released(checkpoint)
    wanted_eps = released.norm_eps if released else fmt.norm_eps
    if wanted_eps and eps and eps != wanted_eps:
        source = f'weights of {checkpoint}' if released else f'models of format {fmt}'
        _warn(f'{source} have norm_eps {wanted_eps:g}, but the backbone has {eps:g}: set norm_eps={wanted_eps:g}, '
              f'unless the weights were trained with {eps:g}.')
    if isinstance(fmt, PlainFormat) and fmt.encoding and not any(
            type(module).__name__ == fmt.encoding['type'] and getattr(module, 'form', None) == fmt.encoding.get('form')
            for module in backbone.modules()):
        _warn(f'{what} was trained with the position encoding {to_source(fmt.encoding)}, which the backbone does not '
              'have: use it, also beside others, unless all blocks are trained further.')


def translate(backbone: nn.Module, state_dict: dict[str, Tensor], prefix: str, *args: object) -> None:
    """Renames a backbone's weights in the state dict of a model in place, if they have the names of another library: a
    hook of torch, before the model loads them.
    """
    theirs = {name.removeprefix(prefix): tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
    if theirs.keys() >= backbone.state_dict().keys():
        return
    try:
        fmt = detect_format(theirs, 'of the backbone', '').format
        own = detect_format(backbone.state_dict(), 'of the backbone', '').format
        if fmt is own or fmt.backbone != own.backbone:
            return
        ours = fmt.to_ours(theirs)
    except UserError:  # whoever loads them says what does not fit
        return
    for name in theirs:
        del state_dict[prefix + name]
    state_dict.update({prefix + name: tensor for name, tensor in ours.items()})


def check_filled(weights: dict[str, Tensor], wanted: dict[str, Tensor], missing: Sequence[str], what: str,
                 backbone: nn.Module) -> None:
    """Raises a UserError, which begins with `what`, if weights do not fit a backbone, or these names are missing."""
    refuse({**compare(weights, wanted), 'missing': missing}, what,
           f'the {type(backbone).__name__}, with {len(wanted)} tensors',
           'build it with the arch and the options of the weights (patch_size, registers, layer_scale, modes, '
           'position_encoding; see create_backbone), use other weights, or name what may be missing in allow_missing, '
           "a regular expression such as 'position_encoding'")


def fit_encodings(backbone: nn.Module, weights: dict[str, Tensor]) -> None:
    """Adapts weights of a backbone's position encodings in place; see `PositionEncoding.fit_weights`."""
    for name, module in backbone.named_modules():
        if isinstance(module, PositionEncoding):
            module.fit_weights(weights, f'{name}.')


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Adapts a convolution from RGB to other input channels: `(C, 3, H, W)` -> `(C, channels, H, W)`.

    One channel gets the sum of the three; other numbers repeat the three in turn, scaled by `3 / channels`.
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, [i % 3 for i in range(channels)]] * (3 / channels)


def _adapt(backbone: nn.Module, weights: dict[str, Tensor], wanted: dict[str, Tensor],
           ) -> tuple[dict[str, Tensor], list[str]]:
    """Adapts weights to a backbone; returns them, and notes about changes."""
    weights, notes = dict(weights), list[str]()
    tables = [f'{name}.table' for name, module in backbone.named_modules() if isinstance(module, LearnablePE)]
    for name in [name for name in weights if POSITION_TABLE.fullmatch(name) and name not in wanted]:
        here = [table for table in tables if table.startswith(name.removesuffix('0.table'))]
        if len(here) == 1:  # beside other encodings
            weights[here[0]] = weights.pop(name)
        elif not tables and 'its position table is dropped, the backbone has none' not in notes:
            notes.append('its position table is dropped, the backbone has none')
    before = dict(weights)
    fit_encodings(backbone, weights)
    stem = next((name for name in wanted if name.endswith(STEM)), STEM)  # the first one of a pyramid
    if stem in weights and weights[stem].dim() == 4 and weights[stem].shape[1] == 3 != wanted[stem].shape[1]:
        weights[stem] = adapt_channels(weights[stem], wanted[stem].shape[1])
    return weights, notes + [
        f'{name} adapted from {tuple(before[name].shape)} to {tuple(tensor.shape)}'
        for name, tensor in weights.items() if tensor.shape != before[name].shape]


def _share(backbone: nn.Module, filled: Container[str]) -> str:
    sizes = {name: parameter.numel() for name, parameter in backbone.named_parameters()}
    total = sum(sizes.values())
    # Rounded down, so that 100 % means all.
    tenths = 1000 * sum(size for name, size in sizes.items() if name in filled) // total
    return f"{tenths / 10} % of the backbone's {total:,} parameters filled"


def _compile(allow_missing: str | Sequence[str] | None) -> list[re.Pattern[str]]:
    patterns = [allow_missing] if isinstance(allow_missing, str) else allow_missing or []
    try:
        return [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as error:
        raise UserError(f'allow_missing is {allow_missing!r}, but must be a regular expression or a list of them '
                        f'({error}).') from error


def _warn(text: str) -> None:
    print_log(text, 'current', logging.WARNING)
