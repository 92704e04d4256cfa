"""Runs parts of a model to learn the shapes of their maps, and whether PyramidCPVT gives the same: it contains PVT,
PVT v2, MiT (SegFormer) and PCPVT.
"""
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import Tensor, nn

from cpvt_mm.archs import PYRAMID_ARCHS, STRIDES, PyramidArch
from cpvt_mm.models import PyramidCPVT
from cpvt_mm.zoo.families import SAME_CLASSES, detect_format
from openmmlab_tools.checkpoints.fitting import compare, refuse
from openmmlab_tools.config_walk import dicts
from openmmlab_tools.errors import UserError, explain, first_line
from openmmlab_tools.registry import in_scope

# The side of the image in pixels; SSD needs this size.
SIDE = 320


class CannotSwap(UserError):
    """The config cannot take the backbone. The message is a sentence with the reason."""


class CannotBuild(CannotSwap):
    """A part of the old model cannot be built on this machine, so its channels are unknown."""


class CannotRun(CannotSwap):
    """A part of the old model fails during probing, so its channels are unknown."""


class Maps(NamedTuple):
    """Feature maps that one part of a model passes to the next."""
    channels: tuple[int, ...]  # of each map
    strides: tuple[int, ...]  # of each map, in pixels of the image
    out_indices: tuple[int, ...] | None = None  # stage or block of each map; None: not stated
    num_blocks: int | None = None  # None if a backbone does not have them in one list


def probe_backbone(config: dict[str, Any], scope: str | None) -> Maps:
    """Builds a backbone, without pretrained weights, and runs it.

    Raises CannotBuild; CannotRun, if it fails; or CannotSwap, if it returns no square maps, or others in training.
    """
    config = ConfigDict(config).to_dict()
    if config.get('padding') == 'exact':  # of this project, which needs the sizes of images, and gives the same maps
        del config['padding']
    what = f'its backbone {config["type"]}'
    backbone = build_part(config, scope, what)
    size = config.get('img_size', SIDE)
    side = size if isinstance(size, int) else max(size)
    try:
        maps = _run_both(backbone, config, SIDE, what)
    except CannotRun:
        if side == SIDE:
            raise
        maps = _run_both(backbone, config, side, what)  # some backbones accept one image size only
    out_indices: Any = getattr(backbone, 'out_indices', None)
    is_one_each = isinstance(out_indices, (list, tuple)) and len(out_indices) == len(maps.channels)
    # Names of the lists of blocks in OpenMMLab's and timm's transformers.
    lists = [getattr(backbone, name, None) for name in ('layers', 'blocks')]
    num_blocks = next((len(blocks) for blocks in lists if isinstance(blocks, nn.ModuleList)), None)
    return maps._replace(out_indices=tuple(out_indices) if is_one_each else None, num_blocks=num_blocks)


def _run_both(backbone: nn.Module, config: dict[str, Any], side: int, what: str) -> Maps:
    """Runs a backbone in eval mode and in training mode on images of one size."""
    image = torch.zeros(2, config.get('in_channels', 3), side, side)
    backbone.eval()
    maps = _run(backbone, image, side, what)
    backbone.train()
    if _run(backbone, image, side, what) != maps:
        raise CannotSwap(f'{what} returns different maps in training and in evaluation, which the new '
                         'backbone cannot do.')
    return maps


def probe_necks(configs: Sequence[dict[str, Any]], maps: Maps, scope: str | None) -> Maps:
    """Builds a sequence of necks and runs it on maps like those of a backbone; for errors see `probe_backbone`."""
    inputs = tuple(torch.zeros(1, channels, SIDE // stride, SIDE // stride)
                   for channels, stride in zip(maps.channels, maps.strides, strict=True))
    names = [config['type'] for config in configs]
    what = f'its neck {" and ".join(names)} on maps of {", ".join(map(str, maps.channels))} channels'
    necks = nn.Sequential(*(build_part(ConfigDict(config).to_dict(), scope, what) for config in configs))
    return _run(necks, inputs, SIDE, what)


def build_part(config: dict[str, Any], scope: str | None, what: str) -> nn.Module:
    """Builds a part of a model under a scope, in eval mode; raises CannotBuild, which begins with `what`."""
    try:
        with in_scope(scope):
            module = MODELS.build(config)
    except Exception as error:  # constructors can raise any error
        raise CannotBuild(f'{what} cannot be built here ({explain(error)}), so the channels that the heads expect are '
                          'unknown.') from error
    module = revert_sync_batchnorm(module)  # SyncBatchNorm trains on GPUs only
    module.eval()  # not `return module.eval()`: in some libraries it returns None
    return module


@torch.no_grad()
def _run(module: nn.Module, inputs: Tensor | tuple[Tensor, ...], side: int, what: str) -> Maps:
    try:
        outputs = module(inputs)
    except Exception as error:
        raise CannotRun(f'{what} does not run on an image of {side} x {side} ({explain(error)}), so the channels that '
                        'the heads expect are unknown.') from error
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    if not isinstance(outputs, (list, tuple)) or not all(
            isinstance(x, Tensor) and (x.dim() == 2 or (x.dim() == 4 and x.shape[2] == x.shape[3])) for x in outputs):
        raise CannotSwap(f'{what} does not return a sequence of square feature maps.')
    # A vector counts as a map of one cell.
    sides = [x.shape[-1] if x.dim() == 4 else 1 for x in outputs]
    return Maps(tuple(x.shape[1] for x in outputs), tuple(side // cells for cells in sides))


# Classes of OpenMMLab -> how the names of their archs begin, and arguments of PyramidCPVT.
# Arguments with the same meaning there, which the weights do not tell.
KEPT = ('in_channels', 'out_indices', 'drop_rate', 'attn_drop_rate', 'drop_path_rate', 'with_cp')
DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(PyramidCPVT).parameters.items()}
SIZE = (64, 96)  # of the images on which both are compared
TOLERANCE = 1e-3  # of the largest output


def is_recognised(config: Mapping[str, Any]) -> bool:
    """Returns whether a backbone's config has one of `SAME_CLASSES`, also with a scope."""
    return isinstance(config.get('type'), str) and config['type'].rpartition('.')[2] in SAME_CLASSES


def same_backbone(config: dict[str, Any], scope: str | None) -> dict[str, Any]:
    """Returns the config of a PyramidCPVT that computes the same as a backbone of mmdet, mmseg or mmpretrain.

    It builds both, gives them the same weights and compares their maps of random images. Pretrained weights stay.
    Raises CannotSwap if the backbone cannot be built here, has a part that PyramidCPVT lacks, or gives other maps.
    """
    config = ConfigDict(config).to_dict()
    what = f'its backbone {config["type"]}'
    theirs = build_part(config, scope, what)
    try:
        with torch.no_grad():
            for parameter in theirs.parameters():  # tables start at 0, which would hide a difference
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
        weights = detect_format(theirs.state_dict(), what, '').format.translate(dict(theirs.state_dict()))
        stated = _defaults(theirs) | config
        arguments = arguments_of(theirs, weights) | {
            key: stated[key] for key in KEPT if key in stated and stated[key] != DEFAULTS[key]}
        ours = PyramidCPVT(**arguments).eval()
        built = tuple(f'stages.{i}.' for i in range(len(ours.stages)))  # others are built there, but not returned
        weights = {name: tensor for name, tensor in weights.items() if name.startswith(built)}
        refuse(compare(weights, ours.state_dict()), what, 'it', 'use another')
        ours.load_state_dict(weights)
        images = torch.randn(2, ours.in_channels, *SIZE)
        with torch.no_grad():
            difference = max(float((one - other).abs().max() / other.abs().max())
                             for one, other in zip(ours(images), theirs(images), strict=True))
    except (UserError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CannotSwap(f'{what} has parts that PyramidCPVT does not have ({first_line(error)}): name another '
                         'backbone.') from error
    if not difference < TOLERANCE:
        raise CannotSwap(f'{what} gives other maps than PyramidCPVT with the same weights (they differ by '
                         f'{difference:.1g} of the largest value): name another backbone.')
    return dict(type='cpvt_mm.PyramidCPVT', **arguments, **_weights(config))


def _weights(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the `init_cfg` that loads the same pretrained weights, if there are any."""
    loads = [cfg for cfg in dicts(config.get('init_cfg')) if cfg.get('checkpoint')]
    if not loads and config.get('pretrained'):
        loads = [dict(checkpoint=config['pretrained'])]
    return dict(init_cfg={**loads[-1], 'type': 'Pretrained'}) if loads else {}


def _defaults(module: nn.Module) -> dict[str, Any]:
    """Returns the defaults of the arguments of a module's class and its bases."""
    return {name: parameter.default for cls in reversed(type(module).__mro__) if '__init__' in vars(cls)
            for name, parameter in inspect.signature(cls).parameters.items()
            if parameter.default is not inspect.Parameter.empty}


def arguments_of(theirs: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns the arguments of PyramidCPVT that follow from weights under its names, and from parts of a module."""
    prefix, parts = SAME_CLASSES[type(theirs).__name__]
    stages = [f'stages.{i}.' for i in range(len(STRIDES))]
    widths = [len(weights[f'{stage}patch_embed.proj.bias']) for stage in stages]
    reductions = [weights.get(f'{stage}blocks.0.attn.sr.proj.weight') for stage in stages]
    sizes = dict(
        embed_dims=widths,
        depths=[sum(name.startswith(f'{stage}blocks.') and name.endswith('.norm1.weight') for name in weights)
                for stage in stages],
        num_heads=_heads(theirs),
        mlp_ratios=[len(weights[f'{stage}blocks.0.mlp.fc1.bias']) // width
                    for stage, width in zip(stages, widths, strict=True)],
        sr_ratios=[1 if kernel is None else kernel.shape[-1] for kernel in reductions])
    name = next((name for name, arch in PYRAMID_ARCHS.items() if name.startswith(prefix)
                 and all(list(getattr(arch, key)) == values for key, values in sizes.items())), None)
    norms = {name: module for name, module in theirs.named_modules() if isinstance(module, nn.LayerNorm)}
    found: dict[str, Any] = dict(norm_eps=next(norm.eps for name, norm in norms.items() if name.endswith('norm1')))
    embed_norm_eps = next(iter(norms.values())).eps  # the first is of the patch embedding
    differs = {} if embed_norm_eps == PyramidArch.embed_norm_eps else dict(embed_norm_eps=embed_norm_eps)
    modes = dict(patch_mode='overlap', mlp_mode='conv', stage_norm=True) if 'stages.0.norm.weight' in weights else {}
    arch = dict(name=name, **differs) if name else {**sizes, **modes, **differs}
    if (table := weights.get('stages.0.position_encoding.0.table')) is not None:
        found['img_size'] = len(table) * STRIDES[0]
    found = {key: value for key, value in found.items() if value != DEFAULTS[key]}
    return {'arch': name if arch == dict(name=name) else arch, **parts, **found}


def _heads(theirs: nn.Module) -> list[int]:
    """Returns the number of heads of each stage, by the attention of its blocks."""
    blocks: list[Any] = [module for module in theirs.modules()
                         if hasattr(module, 'num_heads') and hasattr(module, 'sr_ratio')]
    return [int(block.num_heads) for block, before in zip(blocks, [None, *blocks], strict=False)
            if before is None or before.embed_dims != block.embed_dims]
