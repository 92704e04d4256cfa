"""Measures how much the features of an image change if it is in a padded batch instead of alone."""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from mmengine.config import Config
from torch import Tensor, nn

from cpvt_mm.models.backbone import Backbone
from cpvt_mm.models.grid import pad_or_crop, round_up
from cpvt_mm.models.padding import PAD_SIZE_DIVISOR, Size
from openmmlab_runs.loading import backbone_config, build

from .equivariance import check_gives_maps, draw_weights, smooth_noise


@dataclass(frozen=True)
class Difference:
    """The difference in one map: RMS relative to that of its spatial variation, also of each cell `(h, w)`, and the
    largest.
    """
    error: float
    max_abs: float
    cells: Tensor


def features(model: nn.Module, batch: Tensor, sizes: list[Size]) -> Sequence[Tensor]:
    """Runs a backbone; passes the image sizes to it if it has the option `padding`."""
    return model(batch, sizes) if isinstance(model, Backbone) and model.padding else model(batch)


def train_step(model: nn.Module, batch: Tensor, sizes: list[Size]) -> None:
    """Runs a forward and a backward pass."""
    torch.stack([output.square().mean() for output in features(model, batch, sizes)]).sum().backward()


@torch.no_grad()
def measure(model: nn.Module, image: Tensor, neighbour: Tensor) -> list[Difference]:
    """Compares, for each map, the features of an image alone with those in a batch with a larger image, `(1, 3, H, W)`
    each.

    Alone, the image is zero-padded to multiples of 32, as in mmdet's data preprocessor.
    """
    sizes: list[Size] = [(x.shape[2], x.shape[3]) for x in (image, neighbour)]
    alone = features(model, pad_or_crop(image, *(round_up(side, PAD_SIZE_DIVISOR) for side in sizes[0])), sizes[:1])
    whole = [round_up(side, PAD_SIZE_DIVISOR) for side in sizes[1]]
    together = features(model, torch.cat([pad_or_crop(x, *whole) for x in (image, neighbour)]), sizes)
    return [_difference(batch[0], expected[0]) for batch, expected in zip(together, alone, strict=True)]


def _difference(features: Tensor, expected: Tensor) -> Difference:
    """Compares `(C, H, W)` with `(C, h, w)` on the cells that both have."""
    _, rows, columns = expected.shape
    difference = features[:, :rows, :columns] - expected
    squares = difference.square().mean(dim=0) / expected.var(dim=(1, 2), correction=0).mean()
    return Difference(squares.mean().sqrt().item(), difference.abs().max().item(), squares.sqrt())


def build_backbone(cfg: Config, **changes: Any) -> nn.Module:
    """Builds the backbone of any config, with `changes` of its arguments and weights from `draw_weights`, in eval mode.
    """
    config = {**backbone_config(cfg), 'init_cfg': None, **changes}
    if 'pretrained' in config:
        config['pretrained'] = None
    torch.manual_seed(0)  # some backbones draw random values that are not parameters
    backbone = build(cfg, config)
    check_gives_maps(backbone)
    draw_weights(backbone, seed=0)
    backbone.eval()  # `eval` of some backbones does not return self
    return backbone


def draw_image(size: Size, seed: int) -> Tensor:
    """Draws smooth noise, `(1, 3, height, width)`, float32."""
    return smooth_noise(max(size), seed)[:, :, :size[0], :size[1]].contiguous()
