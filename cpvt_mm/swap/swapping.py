"""Puts the pyramid CPVT in the place of a config's backbone."""
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from mmengine.config import Config

from cpvt_mm.models.arguments import parse_arch
from cpvt_mm.models.backbones.pyramid_cpvt import ARCHS, STRIDES, PyramidArch, PyramidCPVT

from .channels import adapt_heads, adapt_neck, walk
from .errors import CannotBuild, CannotRun, CannotSwap
from .optimizer import adapt_optimizer, set_schedule
from .probing import Maps, ProbedBackbone, probe_backbone, probe_necks

# The normalization of the images that weights of this backbone are trained on, RGB.
MEAN = [123.675, 116.28, 103.53]
STD = [58.395, 57.12, 57.375]
DROP_PATH_RATE = 0.2


def swap_backbone(cfg: Config, arch: str | dict[str, Sequence[int]] = 'small', checkpoint: str | None = None,
                  schedule: bool = False) -> Config:
    """Puts `PyramidCPVT` into a config of mmdet or mmseg.

    It also changes what depends on the backbone: `in_channels` of necks and heads, and the mean and deviation of the
    images. It removes weights of the old backbone or of a whole model with it (`pretrained`, `init_cfg`, `load_from`),
    and translates rules of the optimizer for parameters of the old backbone. The map of a stage replaces each map of
    the old backbone: see `choose_stages`.

    Args:
        cfg: The config. It is not changed. Its backbone and necks are built and run once, to learn their channels.
        arch: The `arch` of `PyramidCPVT`. Defaults to 'small'.
        checkpoint: Weights for the backbone, of any format that it reads. Defaults to None: random.
        schedule: Whether to train with AdamW by this project's rules (no weight decay on position encodings and
            norms); a learning rate for AdamW that the config has is kept. Defaults to False.

    Returns:
        The new config.

    Raises:
        CannotSwap: If the config cannot take a pyramid of four stages.
        ValueError: If there is no such `arch`.
        TypeError: If `cfg` is no Config.
    """
    if not isinstance(cfg, Config):
        raise TypeError(f'cfg is a {type(cfg).__name__}, but must be a Config: read it with cpvt_mm.swap.read_config.')
    cfg = copy.deepcopy(cfg)
    owners = list(_owners(cfg))
    if not owners:
        raise CannotSwap('it has no model.backbone with a type, nor one of a detector in it.')
    backbones = [_swap_in(path, owner, cfg, arch, checkpoint) for path, owner in owners]
    if cfg.get('load_from'):
        cfg.load_from = None
    _remove_imports(cfg)
    with torch.device('meta'):  # only its names are needed
        backbone = PyramidCPVT(**backbones[0])
    if cfg.get('optim_wrapper'):
        adapt_optimizer(cfg.optim_wrapper, backbone)
    if schedule:
        set_schedule(cfg, backbone)
    return cfg


def _owners(cfg: Config) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Yields the parts of the model that have a backbone, with their paths.

    A network for re-identification within a tracker is a model of its own, with its own weights; it stays.
    """
    for path, node in walk(cfg.get('model') or {}):
        backbone = node.get('backbone')
        if isinstance(backbone, dict) and backbone.get('type') and 'reid' not in path:
            yield path, node


def _swap_in(path: tuple[str | int, ...], owner: dict[str, Any], cfg: Config, arch: str | dict[str, Sequence[int]],
             checkpoint: str | None) -> dict[str, Any]:
    """Swaps the backbone of one detector or segmentor, in place, and returns the arguments of the new one."""
    scope = cfg.get('default_scope')
    backbone = owner['backbone']
    old = probe_backbone(backbone, scope)
    stages = choose_stages(backbone['type'], old, scope)
    widths = parse_arch(arch, PyramidArch, ARCHS).embed_dims
    new = Maps(tuple(widths[i] for i in stages), tuple(STRIDES[i] for i in stages))

    necks = owner.get('neck') or []
    _adapt(owner, necks if isinstance(necks, list) else [necks], old.maps, new, scope)

    arguments = _arguments(backbone, arch, stages)
    owner['backbone'] = dict(type='cpvt_mm.PyramidCPVT', **arguments)
    if checkpoint:
        owner['backbone']['init_cfg'] = dict(type='Pretrained', checkpoint=checkpoint)
    holders = [cfg.model]
    for key in path:
        holders.append(holders[-1][key])
    _remove_weights(holders)
    if 'in_channels' not in arguments:
        _set_normalization(holders, cfg)
    return arguments


def _arguments(old: dict[str, Any], arch: str | dict[str, Sequence[int]], stages: Sequence[int]) -> dict[str, Any]:
    """Returns the arguments of the new backbone."""
    if old['type'].rpartition('.')[2] == 'PyramidCPVT':
        return {**{key: value for key, value in old.items() if key not in ('type', 'init_cfg')}, 'arch': arch}
    arguments: dict[str, Any] = dict(arch=arch, drop_path_rate=DROP_PATH_RATE)
    if list(stages) != list(range(len(STRIDES))):
        arguments['out_indices'] = stages
    if old.get('in_channels', 3) != 3:
        arguments['in_channels'] = old['in_channels']
    if old.get('with_cp'):
        arguments['with_cp'] = True
    return arguments


def _adapt(owner: dict[str, Any], necks: Sequence[dict[str, Any]], old: Maps, new: Maps, scope: str | None) -> None:
    """Adapts the first of the necks, and the heads if maps of the backbone reach them."""
    if not necks or 'in_channels' not in necks[0]:  # a neck without takes any maps, such as one that pools
        adapt_heads(owner, old.channels, new.channels)
    elif isinstance(necks[0].get('out_channels'), int):
        adapt_neck(necks[0], old.channels, new.channels)
    else:
        old_read = probe_necks(necks, old, scope)
        adapt_neck(necks[0], old.channels, new.channels)
        try:
            new_read = probe_necks(necks, new, scope)
        except CannotBuild as error:  # it could be for the old channels
            raise CannotRun(str(error)) from error
        adapt_heads(owner, old_read.channels, new_read.channels)


def choose_stages(name: str, backbone: ProbedBackbone, scope: str | None) -> tuple[int, ...]:
    """Chooses the stages of the pyramid, counted from 0, that replace the maps of a backbone.

    Without dilation, the map of stage i has the stride of the pyramid's stage i. With dilation, the stride is smaller:
    a detector gets the stage of the same stride, which its anchors need; a segmentor gets the stage of the same
    number, because it takes any stride and needs the receptive field of the last stage.

    Args:
        name: The type of the backbone.
        backbone: Its maps.
        scope: The scope of the config: 'mmseg', or any other.

    Raises:
        CannotSwap: If its maps are not those of a pyramid.
    """
    stages = (_by_number(backbone) if scope == 'mmseg' else ()) or _by_stride(backbone)
    if not stages:
        strides = ', '.join(map(str, backbone.maps.strides))
        raise CannotSwap(f'its backbone {name} returns maps of strides {strides}, but a pyramid of four stages has one '
                         f'each of {", ".join(map(str, STRIDES))}.')
    return stages


def _by_stride(backbone: ProbedBackbone) -> tuple[int, ...]:
    strides = backbone.maps.strides
    is_pyramid = list(strides) == [stride for stride in STRIDES if stride in strides]
    return tuple(STRIDES.index(stride) for stride in strides) if is_pyramid else ()


def _by_number(backbone: ProbedBackbone) -> tuple[int, ...]:
    strides, numbers = backbone.maps.strides, tuple(range(len(STRIDES)))
    if list(strides) != sorted(strides) or not set(strides) <= set(STRIDES):
        return ()
    if len(strides) == len(numbers) and strides[0] == STRIDES[0]:
        return numbers
    named = backbone.out_indices or ()
    return named if named == tuple(i for i in numbers if i in named) else ()


def _remove_weights(holders: Sequence[dict[str, Any]]) -> None:
    """Removes pretrained weights of all that contains the old backbone."""
    for holder in holders:
        for key in ('pretrained', 'init_cfg'):
            if holder.get(key):
                holder[key] = None


def _remove_imports(cfg: Config) -> None:
    """Removes the import of mmpretrain if it was for the old backbone only."""
    imports = (cfg.get('custom_imports') or {}).get('imports', [])
    modules = [imports] if isinstance(imports, str) else imports
    if modules and all(module.startswith('mmpretrain') for module in modules) and 'mmpretrain.' not in str(cfg.model):
        cfg.custom_imports = None


def _set_normalization(holders: Sequence[dict[str, Any]], cfg: Config) -> None:
    """Sets mean, deviation and order of channels in the preprocessors of all that contains the backbone."""
    has_own = any(holder.get('data_preprocessor') for holder in holders)
    for holder in holders if has_own else [cfg]:
        node = holder.get('data_preprocessor')
        while node:
            if 'data_preprocessor' not in node:  # else it is for several branches, around the one that normalizes
                node.update(mean=MEAN, std=STD)
                node.pop('rgb_to_bgr', None)
                node['to_rgb' if 'to_rgb' in node else 'bgr_to_rgb'] = True
            node = node.get('data_preprocessor')
