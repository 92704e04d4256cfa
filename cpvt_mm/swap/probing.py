"""Finds the maps that a backbone or a neck returns: builds it from its config, without weights, and runs it once."""
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from mmengine.config import ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS
from torch import Tensor, nn

from openmmlab_tools.checkpoints.loading import buildable
from openmmlab_tools.errors import UserError, explain

# The side of the image in pixels; SSD needs this size.
SIDE = 320


class CannotSwap(UserError):
    """The config cannot use the new backbone. The message is a sentence with the reason."""


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


def probe_backbone(config: dict[str, Any]) -> Maps:
    """Builds a backbone in mmengine's current scope, without pretrained weights, and runs it.

    Raises CannotBuild; CannotRun, if it fails; or CannotSwap, if it returns no square maps, or others in training.
    """
    config = ConfigDict(config).to_dict()
    if config.get('padding') == 'exact':  # needs the sizes of images, but the shapes stay
        del config['padding']
    described = f'its backbone {config["type"]}'
    backbone = build_part(config, described)
    size = config.get('img_size', SIDE)
    side = size if isinstance(size, int) else max(size)
    try:
        maps = _run_both(backbone, config, SIDE, described)
    except CannotRun:
        if side == SIDE:
            raise
        maps = _run_both(backbone, config, side, described)  # some backbones accept one image size only
    out_indices: Any = getattr(backbone, 'out_indices', None)
    is_one_each = isinstance(out_indices, (list, tuple)) and len(out_indices) == len(maps.channels)
    # Names of the lists of blocks in OpenMMLab's and timm's transformers.
    lists = [getattr(backbone, name, None) for name in ('layers', 'blocks')]
    num_blocks = next((len(blocks) for blocks in lists if isinstance(blocks, nn.ModuleList)), None)
    return maps._replace(out_indices=tuple(out_indices) if is_one_each else None, num_blocks=num_blocks)


def _run_both(backbone: nn.Module, config: dict[str, Any], side: int, described: str) -> Maps:
    """Runs a backbone in eval mode and in training mode on images of one size."""
    image = torch.zeros(2, config.get('in_channels', 3), side, side)
    backbone.eval()
    maps = _run(backbone, image, side, described)
    backbone.train()
    if _run(backbone, image, side, described) != maps:
        raise CannotSwap(f'{described} returns different maps in training and in evaluation, which the new '
                         'backbone cannot do.')
    return maps


def probe_necks(configs: Sequence[dict[str, Any]], maps: Maps) -> Maps:
    """Builds necks and runs them on maps with the shapes of a backbone's maps; for errors see `probe_backbone`."""
    inputs = tuple(torch.zeros(1, channels, SIDE // stride, SIDE // stride)
                   for channels, stride in zip(maps.channels, maps.strides, strict=True))
    names = [config['type'] for config in configs]
    described = f'its neck {" and ".join(names)} on maps of {", ".join(map(str, maps.channels))} channels'
    necks = nn.Sequential(*(build_part(ConfigDict(config).to_dict(), described) for config in configs))
    return _run(necks, inputs, SIDE, described)


def build_part(config: dict[str, Any], described: str) -> nn.Module:
    """Builds a part of a model in mmengine's current scope, in eval mode.

    Raises CannotBuild, whose message begins with `described`.
    """
    try:
        module = MODELS.build(buildable(config))
    except Exception as error:  # constructors can raise any error
        raise CannotBuild(f'{described} cannot be built here ({explain(error)}), so the channels that the heads expect '
                          'are unknown.') from error
    module = revert_sync_batchnorm(module)  # SyncBatchNorm trains on GPUs only
    module.eval()  # not `return module.eval()`: in some libraries it returns None
    return module


@torch.no_grad()
def _run(module: nn.Module, inputs: Tensor | tuple[Tensor, ...], side: int, described: str) -> Maps:
    try:
        outputs = module(inputs)
    except Exception as error:
        raise CannotRun(f'{described} does not run on an image of {side} x {side} ({explain(error)}), so the channels '
                        'that the heads expect are unknown.') from error
    outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
    if not isinstance(outputs, (list, tuple)) or not all(
            isinstance(x, Tensor) and (x.dim() == 2 or (x.dim() == 4 and x.shape[2] == x.shape[3])) for x in outputs):
        raise CannotSwap(f'{described} does not return a sequence of square feature maps.')
    # A vector counts as a map of one cell.
    sides = [x.shape[-1] if x.dim() == 4 else 1 for x in outputs]
    return Maps(tuple(x.shape[1] for x in outputs), tuple(side // cells for cells in sides))
