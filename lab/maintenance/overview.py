"""Draws the figure at the top of README: what a PEG does, and where the pyramid uses it."""
import argparse
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from openmmlab_runs.files import write_figure

TOKEN, ZERO, PEG, PLAIN, HEAD = '#9ecae1', '#f0f0f0', '#fd8d3c', '#deebf7', '#e5f5e0'
COLUMNS, ROWS = 5, 4  # of the grid of tokens


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str, size: float = 9) -> None:
    axes.add_patch(FancyBboxPatch((x, y), width, height, boxstyle='round,pad=0,rounding_size=0.08', facecolor=colour,
                                  edgecolor='#444444', linewidth=0.8))
    axes.text(x + width / 2, y + height / 2, text, ha='center', va='center', fontsize=size)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate('', end, start,
                  arrowprops=dict(arrowstyle='-|>', color='#444444', linewidth=1, shrinkA=0, shrinkB=0))


def grid(axes: Axes, x: float, y: float, shades: np.ndarray, window: tuple[int, int] | None = None) -> None:
    """Draws cells of side 0.4 from the lower left corner; NaN is zero padding, `window` the centre of a kernel."""
    side = 0.4
    for (row, column), shade in np.ndenumerate(shades):
        corner = (x + column * side, y + (len(shades) - 1 - row) * side)
        colour = ZERO if np.isnan(shade) else TOKEN
        axes.add_patch(Rectangle(corner, side, side, facecolor=colour, alpha=1 if np.isnan(shade) else shade,
                                 edgecolor='#777777', linewidth=0.6))
        if np.isnan(shade):
            axes.text(corner[0] + side / 2, corner[1] + side / 2, '0', ha='center', va='center', fontsize=7,
                      color='#888888')
    if window is not None:
        row, column = window
        axes.add_patch(Rectangle((x + (column - 1) * side, y + (len(shades) - 2 - row) * side), 3 * side, 3 * side,
                                 fill=False, edgecolor=PEG, linewidth=2.5))


def draw_peg(axes: Axes) -> None:
    shades = np.random.default_rng(0).uniform(0.35, 1, (ROWS, COLUMNS))
    axes.set_title('PEG: a depthwise convolution with zero padding tells tokens where they are', fontsize=11,
                   loc='left')
    grid(axes, 0, 0, np.pad(shades, 1, constant_values=np.nan), window=(1, 1))
    arrow(axes, (3.0, 1.2), (3.6, 1.2))
    box(axes, 3.6, 0.75, 2.2, 0.9, 'depthwise\n3 x 3 convolution', PEG)
    arrow(axes, (5.8, 1.2), (6.35, 1.2))
    axes.text(6.55, 1.2, '+', ha='center', va='center', fontsize=18)
    arrow(axes, (6.75, 1.2), (7.3, 1.2))
    grid(axes, 7.4, 0.4, shades[::-1])
    axes.plot([3.2, 3.2, 6.55], [1.2, 2.3, 2.3], color='#444444', linewidth=1)
    arrow(axes, (6.55, 2.3), (6.55, 1.4))
    axes.text(4.9, 2.4, 'tokens', ha='center', fontsize=9)
    axes.text(9.7, 1.2, 'A corner sees five zeros, an edge three,\nthe inside none: that is a position.\n'
              'A convolution has no length, so images\nmay have any size.', va='center', fontsize=9)


def draw_pyramid(axes: Axes) -> None:
    axes.set_title('PyramidCPVT: four stages, a PEG behind the first block of each', fontsize=11, loc='left')
    box(axes, 0, 0.9, 1.1, 0.9, 'image\nH x W', ZERO)
    for stage, stride in enumerate((4, 8, 16, 32)):
        x = 1.5 + 2.75 * stage
        arrow(axes, (x - 0.4, 1.35), (x, 1.35))
        axes.add_patch(FancyBboxPatch((x, 0.8), 2.35, 1.1, boxstyle='round,pad=0,rounding_size=0.08',
                                      facecolor='white', edgecolor='#444444', linewidth=0.8))
        for left, width, text, colour in ((0.06, 0.66, 'patch\nembed', PLAIN), (0.76, 0.46, 'block', PLAIN),
                                          (1.26, 0.44, 'PEG', PEG), (1.74, 0.55, 'blocks', PLAIN)):
            box(axes, x + left, 0.95, width, 0.8, text, colour, size=7)
        axes.text(x + 1.17, 2.0, f'stage {stage + 1}', ha='center', fontsize=9)
        arrow(axes, (x + 2.2, 0.8), (x + 2.2, 0.3))
        axes.text(x + 2.1, 0.55, f'H/{stride} x W/{stride}', ha='right', va='center', fontsize=8.5)
    box(axes, 1.5, -0.4, 10.6, 0.65,
        'neck and head of mmdet or mmsegmentation: FPN, Mask R-CNN, UperNet, Mask2Former ...', HEAD)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('--out', type=Path, default=Path('docs/overview.png'))
    args = parser.parse_args()
    figure = Figure(figsize=(11, 5.2), layout='constrained')
    for axes, draw in zip(figure.subplots(2, 1), (draw_peg, draw_pyramid), strict=True):
        draw(axes)
        axes.set(xlim=(-0.1, 12.9), ylim=(-0.5, 2.65), aspect='equal')
        axes.axis('off')
    write_figure(args.out, figure)


if __name__ == '__main__':
    main()
