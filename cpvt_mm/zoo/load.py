"""Loads weights of any known format into a backbone."""
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmengine.logging import print_log
from torch import Tensor, nn

from cpvt_mm.encodings.base import PositionEncoding
from cpvt_mm.encodings.tables import LearnablePE
from cpvt_mm.registry import FUNCTIONS
from openmmlab_tools.checkpoints.fitting import compare, refuse
from openmmlab_tools.checkpoints.reading import read_weights
from openmmlab_tools.config_text import to_source
from openmmlab_tools.errors import UserError
from openmmlab_tools.texts import some

from .families import Detected, detect_format, find_released
from .plain import REGISTERS, STEM, PlainFormat
from .renaming import POSITION_TABLE, Format

Weights = dict[str, Tensor]
BLOCK = re.compile(r'(stages\.\d+\.)?blocks\.\d+\.')
MISFIT = ('build it with the arch and the options of the weights (patch_size, registers, layer_scale, modes, '
          'position_encoding; see create_backbone), use other weights, or name what may be missing in allow_missing, a '
          "regular expression such as 'position_encoding'")


@FUNCTIONS.register_module()
def load_pretrained(backbone: nn.Module, checkpoint: str | Path, prefix: str | None = None, map_location: str = 'cpu',
                    allow_missing: str | Sequence[str] | None = None) -> None:
    """Loads a checkpoint into a backbone; logs the format, the share of filled parameters, and unused names.

    It resamples position tables of `LearnablePE`, adapts the first convolution from RGB to other `in_channels`, and
    inflates 2D kernels for a `PEG` with `ndim=3`. It logs a warning if

    - the backbone does not have some tensors, such as blocks of a deeper arch;
    - tensors are missing that `allow_missing` matches;
    - the weights were trained with another `norm_eps`;
    - the weights were trained with a rotary encoding that the backbone does not have.

    Args:
        backbone: A PyramidCPVT or CPVT.
        checkpoint: Path or address (see `fetching.fetched`) of a backbone or its model, in one of `families.FORMATS`.
        prefix: The prefix of the backbone's names in the file. Defaults to None: detected.
        map_location: The device to load to. Defaults to 'cpu'.
        allow_missing: One or more regular expressions (`re.search`). Tensors whose names match may be missing in the
            file. They keep their values. Defaults to None: no tensor may be missing.

    Raises:
        MissingFile: If the file does not exist.
        UserError: If the backbone is on the meta device; if the file cannot be read, contains no such backbone, or
            lacks weights; or if it contains further weights for existing blocks or registers. The backbone stays
            unchanged.
    """
    weights, key, ema_key, *_ = read_weights(checkpoint, map_location)
    needed = backbone.state_dict()
    detected, renamed = _backbone_of(weights, checkpoint, prefix, needed)
    described = f'checkpoint {checkpoint} (format {detected.format})'
    fitted, adapted = _adapt(backbone, renamed, needed)
    loaded = _loaded(fitted, needed)
    missing = [name for name in needed if name not in fitted]
    patterns = [allow_missing] if isinstance(allow_missing, str) else allow_missing or []
    forbidden = [name for name in missing if not any(re.search(pattern, name) for pattern in patterns)]
    refuse({**compare(loaded, needed), 'missing': forbidden}, described,
           f'the {type(backbone).__name__}, with {len(needed)} tensors', MISFIT)
    backbone.load_state_dict(loaded, strict=False)
    used = {*loaded, *(name for name in renamed if name not in fitted)}  # the latter is a table under another name
    left_over = [name for name in weights if not name.startswith(detected.prefix)
                 or used.isdisjoint(detected.format.translate_name(name.removeprefix(detected.prefix)))]
    averages = [f'weights of {key}, not of {ema_key}'] if ema_key else []
    _log(checkpoint, backbone, loaded, detected, [*averages, *adapted, f'left over: {some(left_over) or "nothing"}'])
    doubts = [f'checkpoint {checkpoint} lacks, as allow_missing allows: {some(missing)}'] if missing else []
    others = [name for name in fitted if name not in needed]
    for text in (*doubts, *_doubts(backbone, checkpoint, described, detected.format, others)):
        print_log(text, 'current', logging.WARNING)


def _loaded(fitted: Weights, needed: Weights) -> Weights:
    """Returns the weights that the backbone has, and those that would change what its layers compute.

    The latter are registers, and more parameters in a block that the backbone has.
    """
    blocks = {match[0] for match in map(BLOCK.match, needed) if match}
    return {name: tensor for name, tensor in fitted.items() if name in needed or name == REGISTERS
            or ((match := BLOCK.match(name)) and match[0] in blocks)}


def _backbone_of(weights: Weights, checkpoint: str | Path, prefix: str | None, needed: Weights
                 ) -> tuple[Detected, Weights]:
    """Finds a backbone of the same class in a checkpoint; returns its weights under the names here as well."""
    backbone = detect_format(needed, 'of the backbone', '').format.backbone
    if any(tensor.is_meta for tensor in needed.values()):
        raise UserError(f'the {backbone} is on the meta device, which stores no weights: build it on another device.')
    detected = detect_format(weights, checkpoint, prefix, backbone)
    if detected.format.backbone != backbone:
        raise UserError(f'checkpoint {checkpoint} holds a {detected.format.backbone} (format {detected.format}), but '
                        f'the backbone is a {backbone}: use the other backbone, or other weights.')
    of_backbone = {name.removeprefix(detected.prefix): tensor for name, tensor in weights.items()
                   if name.startswith(detected.prefix)}
    try:
        return detected, detected.format.translate(of_backbone)
    except UserError as error:
        raise UserError(f'checkpoint {checkpoint} cannot be loaded: {error}') from error


def _adapt(backbone: nn.Module, weights: Weights, needed: Weights) -> tuple[Weights, list[str]]:
    """Adapts weights to a backbone; returns them, and notes about changes."""
    weights, notes = dict(weights), list[str]()
    tables = [f'{name}.table' for name, module in backbone.named_modules() if isinstance(module, LearnablePE)]
    for name in [name for name in weights if POSITION_TABLE.fullmatch(name) and name not in needed]:
        same_stage = [table for table in tables if table.startswith(name.removesuffix('0.table'))]
        if len(same_stage) == 1:  # in a list with other encodings
            weights[same_stage[0]] = weights.pop(name)
        elif not tables:
            notes = ['its position table is dropped, the backbone has none']
    before = dict(weights)
    for name, module in backbone.named_modules():
        if isinstance(module, PositionEncoding):
            module.fit_weights(weights, f'{name}.')
    stem = next((name for name in needed if name.endswith(STEM)), STEM)  # the first one of a pyramid
    if stem in weights and weights[stem].dim() == 4 and weights[stem].shape[1] == 3 != needed[stem].shape[1]:
        weights[stem] = adapt_channels(weights[stem], needed[stem].shape[1])
    adapted = [f'{name} adapted from {tuple(before[name].shape)} to {tuple(tensor.shape)}'
               for name, tensor in weights.items() if tensor.shape != before[name].shape]
    return weights, notes + [some(adapted)] * bool(adapted)


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Adapts the weight of a convolution from RGB to other input channels: `(C, 3, H, W)` -> `(C, channels, H, W)`.

    With one channel, it sums the three channels. Otherwise, it repeats the three channels, scaled by `3 / channels`.
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    return weight[:, [i % 3 for i in range(channels)]] * (3 / channels)


def _log(checkpoint: str | Path, backbone: nn.Module, filled: Weights, detected: Detected, notes: list[str]) -> None:
    sizes = {name: parameter.numel() for name, parameter in backbone.named_parameters()}
    total = sum(sizes.values())
    tenths = 1000 * sum(size for name, size in sizes.items() if name in filled) // total  # so that 100 % means all
    if detected.prefix:
        others = ''.join(f', not {other!r}' for other in detected.others)
        notes = [f'weights below {detected.prefix!r}{others}', *notes]
    print_log(f"checkpoint {checkpoint}: format {detected.format}, {tenths / 10} % of the backbone's {total:,} "
              f'parameters filled; {"; ".join(notes)}', 'current')


def _doubts(backbone: nn.Module, checkpoint: str | Path, described: str, fmt: Format, surplus: list[str]
            ) -> Iterator[str]:
    """Yields what may be wrong about weights that fit; `surplus` are names that the backbone does not have."""
    parts = {name.split('.')[0] for name in backbone.state_dict()}
    # The log mentions a table already.
    surplus = [name for name in surplus if name.split('.')[0] in parts and not POSITION_TABLE.fullmatch(name)]
    if surplus:
        yield (f'{described} is from a larger or different {type(backbone).__name__}: this backbone does not have '
               f'{len(surplus)} of its tensors: {some(surplus)}')
    eps, released = getattr(backbone, 'norm_eps', None), find_released(checkpoint)
    trained = released.norm_eps if released else fmt.norm_eps
    if trained and eps and eps != trained:
        source = f'weights of {checkpoint}' if released else f'models of format {fmt}'
        where = '' if fmt.backbone == 'PyramidCPVT' else ' in arch'
        yield (f'{source} have norm_eps {trained:g}, but the backbone has {eps:g}: set norm_eps={trained:g}{where}, '
               f'unless the weights were trained with {eps:g}.')
    if isinstance(fmt, PlainFormat) and fmt.encoding and not any(
            type(module).__name__ == fmt.encoding['type'] and getattr(module, 'form', None) == fmt.encoding.get('form')
            for module in backbone.modules()):
        yield (f'{described} was trained with the position encoding {to_source(fmt.encoding)}, but the backbone does '
               'not have it. Add it to position_encoding, unless you train all blocks further.')


@FUNCTIONS.register_module()
def translate(backbone: nn.Module, state_dict: Weights, prefix: str, *args: object) -> None:
    """Renames a backbone's weights in the state dict of a model in place, if they have the names of another library: a
    hook of torch, before the model loads them.
    """
    weights = {name.removeprefix(prefix): tensor for name, tensor in state_dict.items() if name.startswith(prefix)}
    needed = backbone.state_dict()
    if weights.keys() >= needed.keys():
        return
    try:
        fmt = detect_format(weights, 'of the backbone', '').format
        format_here = detect_format(needed, 'of the backbone', '').format
        if fmt is format_here or fmt.backbone != format_here.backbone:
            return
        translated = fmt.translate(weights)
    except UserError:  # whoever loads them says what does not fit
        return
    for name in weights:
        del state_dict[prefix + name]
    state_dict.update({prefix + name: tensor for name, tensor in translated.items()})
