"""Finds the arguments with which PyramidCPVT computes the same as a backbone of OpenMMLab.

PyramidCPVT contains PVT, PVT v2, MiT (SegFormer) and PCPVT, the Twins of mmseg and mmpretrain.
"""
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.config import ConfigDict
from torch import Tensor, nn

from cpvt_mm.archs import PYRAMID_ARCHS, STRIDES, PyramidArch
from cpvt_mm.models import PyramidCPVT
from cpvt_mm.zoo.families import SAME_CLASSES, detect_format
from openmmlab_tools.checkpoints.fitting import compare, refuse
from openmmlab_tools.config_walk import dicts
from openmmlab_tools.errors import UserError, first_line

from .probing import CannotSwap, build_part

# Arguments that have the same meaning in both classes, and that weights do not show.
SHARED = ('in_channels', 'out_indices', 'drop_rate', 'attn_drop_rate', 'drop_path_rate', 'with_cp')
DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(PyramidCPVT).parameters.items()}
SIZE = (64, 96)  # of the images on which both are compared
TOLERANCE = 1e-3  # of the largest output


def is_recognised(config: Mapping[str, Any]) -> bool:
    """Returns whether a backbone's config has one of `SAME_CLASSES` as its type, also with a scope."""
    return isinstance(config.get('type'), str) and config['type'].rpartition('.')[2] in SAME_CLASSES


def same_backbone(config: dict[str, Any], pretrained: str | None = None) -> dict[str, Any]:
    """Returns the config of a PyramidCPVT that computes the same maps as a backbone of mmdet, mmseg or mmpretrain.

    It builds both, gives them the same weights and compares their maps of random images. The new config loads the same
    pretrained weights.

    Args:
        config: The config of the backbone, for mmengine's current scope.
        pretrained: Weights that a segmentor loads into the backbone. Defaults to None: the weights in the config, if
            any.

    Raises:
        CannotSwap: If the backbone has another class, cannot be built here, has a part that PyramidCPVT lacks, or
            returns other maps.
    """
    config = ConfigDict(config).to_dict()
    described = f'its backbone {config["type"]}'
    if not is_recognised(config):
        raise CannotSwap(f'{described} cannot stay the same, because only {", ".join(SAME_CLASSES)} can: name another '
                         'backbone.')
    backbone = build_part(config, described)
    try:
        weights = _random_weights(backbone, described)
        stated = _defaults(backbone) | config
        arguments = arguments_of(backbone, weights) | {
            key: stated[key] for key in SHARED if key in stated and stated[key] != DEFAULTS[key]}
        difference = _difference(PyramidCPVT(**arguments).eval(), backbone, weights, described)
    except (UserError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CannotSwap(f'{described} has parts that PyramidCPVT does not have ({first_line(error)}): name another '
                         'backbone.') from error
    if not difference < TOLERANCE:
        raise CannotSwap(f'{described} gives other maps than PyramidCPVT with the same weights (they differ by '
                         f'{difference:.1g} of the largest value): name another backbone.')
    return dict(type='cpvt_mm.PyramidCPVT', **arguments, **_pretrained(config, pretrained))


@torch.no_grad()
def _random_weights(backbone: nn.Module, described: str) -> dict[str, Tensor]:
    """Adds noise to all parameters of a backbone, in place; returns its weights under the names of PyramidCPVT."""
    for parameter in backbone.parameters():  # tables start at 0, which would hide a difference
        parameter.add_(torch.randn_like(parameter), alpha=0.02)
    state_dict = dict(backbone.state_dict())
    return detect_format(state_dict, described, '').format.translate(state_dict)


@torch.no_grad()
def _difference(pyramid: PyramidCPVT, backbone: nn.Module, weights: dict[str, Tensor], described: str) -> float:
    """Returns the largest difference of maps, relative to the largest value of a map; `weights` are the backbone's.

    Raises a UserError if the pyramid does not have exactly these weights.
    """
    built = tuple(f'stages.{i}.' for i in range(len(pyramid.stages)))  # the backbone also builds stages after the last
    weights = {name: tensor for name, tensor in weights.items() if name.startswith(built)}
    refuse(compare(weights, pyramid.state_dict()), described, 'it', 'use another')
    pyramid.load_state_dict(weights)
    images = torch.randn(2, pyramid.in_channels, *SIZE)
    return max(float((x - y).abs().max() / y.abs().max())
               for x, y in zip(pyramid(images), backbone(images), strict=True))


def _pretrained(config: dict[str, Any], pretrained: str | None) -> dict[str, Any]:
    """Returns the `init_cfg` that loads the same pretrained weights, if there are any."""
    pretrained = pretrained or config.get('pretrained')
    init_cfgs = [cfg for cfg in dicts(config.get('init_cfg')) if cfg.get('checkpoint')]
    if not init_cfgs and pretrained:
        init_cfgs = [dict(checkpoint=pretrained)]
    return dict(init_cfg={**init_cfgs[-1], 'type': 'Pretrained'}) if init_cfgs else {}


def _defaults(module: nn.Module) -> dict[str, Any]:
    """Returns the defaults of the arguments of a module's class and its bases."""
    return {name: parameter.default for cls in reversed(type(module).__mro__) if '__init__' in vars(cls)
            for name, parameter in inspect.signature(cls).parameters.items()
            if parameter.default is not inspect.Parameter.empty}


def arguments_of(backbone: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns the arguments of PyramidCPVT that follow from a backbone and its weights under the names here."""
    prefix, options = SAME_CLASSES[type(backbone).__name__]
    stages = [f'stages.{i}.' for i in range(len(STRIDES))]
    widths = [len(weights[f'{stage}patch_embed.proj.bias']) for stage in stages]
    reductions = [weights.get(f'{stage}blocks.0.attn.sr.proj.weight') for stage in stages]
    sizes = dict(
        embed_dims=widths,
        depths=[sum(name.startswith(f'{stage}blocks.') and name.endswith('.norm1.weight') for name in weights)
                for stage in stages],
        num_heads=_heads(backbone),
        mlp_ratios=[len(weights[f'{stage}blocks.0.mlp.fc1.bias']) // width
                    for stage, width in zip(stages, widths, strict=True)],
        sr_ratios=[1 if kernel is None else kernel.shape[-1] for kernel in reductions])
    name = next((name for name, arch in PYRAMID_ARCHS.items() if name.startswith(prefix)
                 and all(list(getattr(arch, key)) == values for key, values in sizes.items())), None)
    norms = {name: module for name, module in backbone.named_modules() if isinstance(module, nn.LayerNorm)}
    embed_norm_eps = next(iter(norms.values())).eps  # the first is of the patch embedding
    eps = {} if embed_norm_eps == PyramidArch.embed_norm_eps else dict(embed_norm_eps=embed_norm_eps)
    modes = dict(patch_mode='overlap', mlp_mode='conv', stage_norm=True) if 'stages.0.norm.weight' in weights else {}
    arch = dict(name=name, **eps) if name else {**sizes, **modes, **eps}
    measured: dict[str, Any] = dict(norm_eps=next(norm.eps for name, norm in norms.items() if name.endswith('norm1')))
    if (table := weights.get('stages.0.position_encoding.0.table')) is not None:
        measured['img_size'] = len(table) * STRIDES[0]
    return {'arch': name if arch == dict(name=name) else arch, **options,
            **{key: value for key, value in measured.items() if value != DEFAULTS[key]}}


def _heads(backbone: nn.Module) -> list[int]:
    """Returns the number of attention heads in each stage."""
    blocks: list[Any] = [module for module in backbone.modules()
                         if hasattr(module, 'num_heads') and hasattr(module, 'sr_ratio')]
    return [int(block.num_heads) for block, before in zip(blocks, [None, *blocks], strict=False)
            if before is None or before.embed_dims != block.embed_dims]
