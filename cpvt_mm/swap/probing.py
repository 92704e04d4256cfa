"""Probes the parts of a model: runs them on a small image to learn the shapes of their outputs."""
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import Tensor, nn

from openmmlab_runs.errors import UserError, first_line
from openmmlab_runs.registry import in_scope

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
    try:
        maps = _maps_of(backbone, config, SIDE, what)
    except CannotRun:
        size = config.get('img_size', SIDE)
        side = size if isinstance(size, int) else max(size)
        if side == SIDE:
            raise
        maps = _maps_of(backbone, config, side, what)  # some backbones accept one image size only
    out_indices: Any = getattr(backbone, 'out_indices', None)
    is_one_each = isinstance(out_indices, (list, tuple)) and len(out_indices) == len(maps.channels)
    # Names of the lists of blocks in OpenMMLab's and timm's transformers.
    lists = [getattr(backbone, name, None) for name in ('layers', 'blocks')]
    num_blocks = next((len(blocks) for blocks in lists if isinstance(blocks, nn.ModuleList)), None)
    return maps._replace(out_indices=tuple(out_indices) if is_one_each else None, num_blocks=num_blocks)


def _maps_of(backbone: nn.Module, config: dict[str, Any], side: int, what: str) -> Maps:
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
        raise CannotBuild(f'{what} cannot be built here ({type(error).__name__}: {first_line(error)}), so the '
                         'channels that the heads expect are unknown.') from error
    module = revert_sync_batchnorm(module)  # SyncBatchNorm trains on GPUs only
    module.eval()  # not `return module.eval()`: in some libraries it returns None
    return module


@torch.no_grad()
def _run(module: nn.Module, inputs: Tensor | tuple[Tensor, ...], side: int, what: str) -> Maps:
    try:
        outputs = module(inputs)
    except Exception as error:
        raise CannotRun(f'{what} does not run on an image of {side} x {side} ({type(error).__name__}: '
                        f'{first_line(error)}), so the channels that the heads expect are unknown.') from error
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    if not isinstance(outputs, (list, tuple)) or not all(
            isinstance(x, Tensor) and (x.dim() == 2 or (x.dim() == 4 and x.shape[2] == x.shape[3])) for x in outputs):
        raise CannotSwap(f'{what} does not return a sequence of square feature maps.')
    # A vector counts as a map of one cell.
    sides = [x.shape[-1] if x.dim() == 4 else 1 for x in outputs]
    return Maps(tuple(x.shape[1] for x in outputs), tuple(side // cells for cells in sides))
