"""Translation equivariance: whether features move with the image.

The content of an otherwise empty canvas is shifted by whole cells of every grid in the network. These backbones are not
equivariant to other shifts, because their patches do not overlap. No content enters or leaves the canvas. Attention
without positions then sees the same tokens in another order, so only the position encoding can change the features.
Crops of a larger image would mostly measure how new content at the border affects attention, even without a position
encoding.
"""
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from cpvt_mm.models import CPVT, PyramidCPVT
from cpvt_mm.models.layers import Attention
from cpvt_mm.zoo.family import STRIDES
from openmmlab_runs.checkpoints.loading import check_takes_rgb
from openmmlab_runs.errors import UserError
from openmmlab_runs.pictures.images import read_image
from openmmlab_runs.texts import figure_text, label

# The position encodings that the tool compares, by name.
ENCODINGS: dict[str, dict[str, Any] | list[dict[str, Any]] | None] = {
    'none': None,
    'learnable 2-D': dict(type='LearnablePE'),
    'sinusoidal 1-D': dict(type='SinusoidalPE', ndim=1),
    'sinusoidal 2-D': dict(type='SinusoidalPE'),
    'random table': dict(type='RandomTablePE'),
    'random Fourier': dict(type='RandomFourierPE'),
    'rotary': dict(type='RotaryPE'),
    'relative': dict(type='RelativePE'),
    'PEG': dict(type='PEG'),
    'PEG, k = 1': dict(type='PEG', kernel_size=1),
    'PEG + learnable 2-D': [dict(type='PEG'), dict(type='LearnablePE')],
}


@dataclass(frozen=True)
class Equivariance:
    """The equivariance error of the features of one image.

    Attributes:
        error: RMS over inner cells of the difference between the features of the same content before and after a shift,
            relative to that of their spatial variation. 0: features move with the image. sqrt(2): they are
            uncorrelated.
        cells: The error of each cell of the canvas, `(h, w)`; NaN if no shift moves its content to an inner cell.
        stride: Stride of the features in pixels.
    """
    error: float
    cells: Tensor
    stride: int


def measure(features: Callable[[Tensor], Tensor], image: Tensor, shift: int, stride: int, margin: int) -> Equivariance:
    """Compares the features `(1, C, h, w)` of an image before and after a shift in each of the eight directions.

    The outer `shift` pixels of the image are empty; they are a multiple of `stride`. `margin` is the number of cells at
    each border that are not inner cells; padding affects them even without attention. The spatial variation of a
    channel is about its mean, because a constant does not distinguish positions.
    """
    still, step = features(image)[0], shift // stride
    inner = (..., slice(margin, still.shape[1] - margin), slice(margin, still.shape[2] - margin))
    moves = []
    for y, x in itertools.product((-step, 0, step), repeat=2):
        if (y, x) != (0, 0):
            moved = torch.full_like(still, math.nan)
            moved[inner] = features(image.roll((y * stride, x * stride), dims=(2, 3)))[0][inner]
            # Shifts back to the original position; negative padding crops.
            moved = F.pad(moved, (-x, x, -y, y), value=math.nan)
            moves.append((still - moved).square().mean(dim=0))
    squares = torch.stack(moves)
    variance = still[inner].var(dim=(1, 2), correction=0).mean()
    return Equivariance(error=(squares[inner].nanmean() / variance).sqrt().item(),
                        cells=(squares.nanmean(dim=0) / variance).sqrt(), stride=stride)


@torch.no_grad()
def measure_backbone(backbone: CPVT | PyramidCPVT, image: Tensor, shift: int, margin: int,
                     output: int | None = None) -> Equivariance:
    """Calls `measure` for one output of a backbone in eval mode.

    The sides of the image and the shift are multiples of `cell_period`. `output` defaults to the last one with a stride
    of 16 or less, which gives enough cells. `margin` is in cells of the output.
    """
    check_gives_maps(backbone)
    strides, period = backbone.strides, cell_period(backbone)
    if output is None:
        output = max((i for i, stride in enumerate(strides) if stride <= 16), default=0)
    if output not in range(len(strides)):
        raise UserError(f'output {output} does not exist: choose one from 0 to {len(strides) - 1}.')
    height, width = image.shape[2:]
    for name, pixels in (('canvas', height), ('canvas', width), ('shift', shift)):
        if pixels < 1 or pixels % period:
            raise UserError(f'the {name} of {pixels} pixels is not a multiple of {period} pixels, which are whole '
                            'cells of every grid in this backbone: choose a multiple.')
    stride = strides[output]
    if margin < 0 or min(height, width) // stride - 2 * margin - shift // stride < 1:
        raise UserError(f'a margin of {margin} cells of {stride} pixels leaves no cell to compare in a canvas of '
                        f'{width} x {height} pixels after a shift by {shift}: choose another margin, shift or size.')
    return measure(lambda canvas: backbone(canvas)[output], image, shift, stride, margin)


def cell_period(backbone: CPVT | PyramidCPVT) -> int:
    """Returns the least number of pixels that is a whole number of cells in all grids of tokens and of reduced keys."""
    if isinstance(backbone, CPVT):
        return backbone.patch_embed.patch_size
    return math.lcm(*(STRIDES[i] * attn.sr_ratio for i, stage in enumerate(backbone.stages)
                      for attn in stage.modules() if isinstance(attn, Attention)))


def draw_weights(backbone: nn.Module, seed: int) -> None:
    """Draws weights that give attention and position encodings as much effect as in a trained network.

    Initial weights are so small that attention is uniform and tables have hardly any effect. Here weights of linear
    layers and convolutions are normal with variance 1 / fan-in, and tables and tokens have variance 1. Biases are
    small, norms are unchanged. All weights outside the position encoding are the same for every encoding.
    """
    generator = torch.Generator().manual_seed(seed)
    for _, module in sorted(backbone.named_modules(), key=lambda named: 'position_encoding' in named[0]):
        if isinstance(module, (nn.LayerNorm, nn.modules.batchnorm._BatchNorm)):
            continue
        is_matrix = isinstance(module, (nn.Linear, nn.Conv2d))
        for name, parameter in module.named_parameters(recurse=False):
            std = 1. if not is_matrix else 0.02 if name == 'bias' else parameter[0].numel()**-0.5
            nn.init.normal_(parameter, std=std, generator=generator)


def remove_attention(backbone: nn.Module) -> None:
    """Makes all attention layers return zero, so that only the residual path and the MLP of each block remain."""
    for module in backbone.modules():
        if isinstance(module, Attention):
            nn.init.zeros_(module.proj.weight)
            nn.init.zeros_(module.proj.bias)


def read_square(path: str | Path, side: int) -> np.ndarray:
    """Reads the central square of an image, resized to `side` pixels; see `read_image`."""
    image = read_image(path)
    length = min(image.shape[:2])
    top, left = (image.shape[0] - length) // 2, (image.shape[1] - length) // 2
    return mmcv.imresize(image[top:top + length, left:left + length], (side, side))


def check_gives_maps(backbone: nn.Module) -> None:
    """Raises a UserError if a backbone does not take RGB images, or returns no maps."""
    check_takes_rgb(getattr(backbone, 'in_channels', 3))
    if isinstance(backbone, CPVT) and backbone.out_type != 'featmap':
        raise UserError(f'out_type of the backbone is {backbone.out_type!r}, but must be featmap, because only maps '
                        'have a feature for each position.')


def smooth_noise(side: int, seed: int) -> Tensor:
    """Draws noise of all scales `(1, 3, side, side)`, of mean 0 and variance 1, larger scales stronger, as in
    photographs.
    """
    if side < 4:
        raise UserError(f'an image of {side} pixels a side is too small for noise: choose at least 4.')
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(1, 3, side, side)
    cells = 2
    while cells <= side // 2:
        noise = torch.randn(1, 3, cells, cells, generator=generator) / cells
        image += F.interpolate(noise, (side, side), mode='bicubic', align_corners=False)
        cells *= 2
    return (image - image.mean()) / image.std()


def error_figure(cells: dict[str, Tensor], margin: int, title: str) -> Figure:
    """Draws heat maps of relative errors, `(h, w)`, with one common scale; a white frame marks the margin."""
    columns = min(len(cells), 4)
    rows = -(-len(cells) // columns)
    figure = Figure(figsize=(max(2.4 * columns + 0.8, 4), 2.5 * rows + 0.8), layout='constrained')
    figure.suptitle(figure_text(title), fontsize='medium', wrap=True)
    panels = figure.subplots(rows, columns, squeeze=False)
    # Logarithmic, because exact encodings have errors of 1e-7, and tables have errors of 1.
    scale = LogNorm(1e-3, 2, clip=True)
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, (name, errors) in zip(panels.flat, cells.items(), strict=False):
        drawn = axes.imshow(errors.numpy(), norm=scale, cmap='viridis')
        height, width = errors.shape
        if margin:
            axes.add_patch(Rectangle((margin - 0.5, margin - 0.5), width - 2 * margin, height - 2 * margin, fill=False,
                                     edgecolor='white', linewidth=1.5))
        axes.set_title(label(name), fontsize='medium')
    figure.colorbar(drawn, ax=panels, label='relative error', shrink=0.8, extend='min')
    return figure
