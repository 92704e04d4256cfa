"""Shared parts for measurements of features: encodings, images, random weights with visible effects, and heat maps."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from cpvt_mm.models import CPVT
from openmmlab_tools.checkpoints.loading import check_takes_rgb
from openmmlab_tools.errors import UserError
from openmmlab_tools.pictures.images import read_image
from openmmlab_tools.texts import figure_text

# ImageNet's mean and standard deviation, for images without a config.
IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True)
# The position encodings that commands compare, by name.
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
    """Draws noise `(1, 3, side, side)` with mean 0 and variance 1. It contains all scales; as in photographs, larger
    scales are stronger.
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


def panels(count: int, most: int, width: float, height: float, title: str, sharey: bool = False
           ) -> tuple[Figure, Sequence[Axes]]:
    """Makes a figure with `count` axes of a size in inches, at most `most` in a row."""
    columns = min(count, most)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(width * columns + 1, 4), height * rows + 0.7), layout='constrained')
    figure.suptitle(figure_text(title), fontsize='medium', wrap=True)
    axes = list(figure.subplots(rows, columns, squeeze=False, sharey=sharey).flat)
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def error_figure(cells: dict[str, Tensor], margin: int, title: str) -> Figure:
    """Draws heat maps of relative errors, `(h, w)`, with one common scale; a white frame marks the margin."""
    figure, drawn = panels(len(cells), 5, 2.4, 2.2, title)
    for axes, (name, errors) in zip(drawn, cells.items(), strict=True):
        axes.set_axis_off()
        # Logarithmic, because exact encodings have errors of 1e-7, and tables have errors of 1.
        image = axes.imshow(errors.numpy(), norm=LogNorm(1e-3, 2, clip=True), cmap='viridis')
        height, width = errors.shape
        if margin:
            axes.add_patch(Rectangle((margin - 0.5, margin - 0.5), width - 2 * margin, height - 2 * margin, fill=False,
                                     edgecolor='white', linewidth=1.5))
        axes.set_title(figure_text(name), fontsize='small')
    bar = figure.colorbar(image, ax=drawn, shrink=0.9, extend='both',
                          label='change, relative to how much features vary')
    bar.set_ticks([0.001, 0.01, 0.1, 1], labels=['0.1 %', '1 %', '10 %', '100 %'])
    bar.minorticks_off()
    return figure
