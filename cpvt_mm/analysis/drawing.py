"""Figures of the analysis tools."""
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

DPI = 100


def error_figure(cells: dict[str, Tensor], margin: int, title: str) -> Figure:
    """Draws heat maps of relative errors, `(h, w)`, with one common scale; a white frame marks the margin."""
    columns = min(len(cells), 4)
    rows = -(-len(cells) // columns)
    figure = Figure(figsize=(max(2.4 * columns + 0.8, 4), 2.5 * rows + 0.8), layout='constrained')
    figure.suptitle(title, fontsize='medium', wrap=True)
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
        axes.set_title(name, fontsize='medium')
    figure.colorbar(drawn, ax=panels, label='relative error', shrink=0.8, extend='min')
    return figure


@dataclass(frozen=True)
class Overlay:
    """One map to draw over an image.

    Attributes:
        title: Title of the panel.
        values: `(H', W')`, non-negative.
        cell: Height and width of a cell in pixels; the first cell is at the top left of the image.
    """
    title: str
    values: Tensor
    cell: tuple[float, float]


def overlay_figure(image: np.ndarray, overlays: Sequence[Sequence[Overlay]], mark: tuple[int, int] | None,
                   title: str) -> Figure:
    """Draws each overlay on the image, from transparent at 0 to bright yellow at its maximum.

    Args:
        image: `(H, W, 3)` RGB, uint8.
        overlays: Rows of panels.
        mark: Pixel to mark with a cross, (x, y), or None.
        title: Title of the figure.
    """
    height, width = image.shape[:2]
    columns = max(map(len, overlays))
    panel = 2.4
    figure = Figure(figsize=(panel * columns, (panel * height / width + 0.4) * len(overlays) + 0.4),
                    layout='constrained')
    figure.suptitle(title, fontsize='medium')
    panels = figure.subplots(len(overlays), columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for row, row_overlays in zip(panels, overlays, strict=True):
        for axes, overlay in zip(row, row_overlays, strict=False):
            _draw_overlay(axes, image, overlay, mark)
            axes.set_title(overlay.title, fontsize='small')
    return figure


def overlay_image(image: np.ndarray, overlay: Overlay, mark: tuple[int, int], side: int = 512) -> np.ndarray:
    """Draws one overlay as in `overlay_figure`: `(H', W', 3)` RGB, uint8; the longer side has `side` pixels."""
    height, width = (round(length * side / max(image.shape[:2])) for length in image.shape[:2])
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    _draw_overlay(figure.add_axes((0, 0, 1, 1)), image, overlay, mark)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def _draw_overlay(axes: Axes, image: np.ndarray, overlay: Overlay, mark: tuple[int, int] | None) -> None:
    height, width = image.shape[:2]
    grey = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2) / 255
    values = overlay.values.numpy()
    rows, cols = values.shape
    axes.set_axis_off()
    axes.imshow(grey, extent=(0, width, height, 0))
    cell_height, cell_width = overlay.cell
    axes.imshow(values, extent=(0, cols * cell_width, rows * cell_height, 0), cmap='plasma',
                vmin=0, alpha=0.7 * values / values.max())
    # Cells on the right and at the bottom may extend beyond the image.
    axes.set(xlim=(0, width), ylim=(height, 0))
    if mark:
        axes.plot(mark[0] + 0.5, mark[1] + 0.5, 'x', color='cyan', markersize=8, markeredgewidth=2)


def grid_figure(maps: dict[str, Tensor], title: str) -> Figure:
    """Draws attention as matrices, `(queries, keys)`: a row for each query and a column for each key."""
    columns = min(len(maps), 4)
    rows = -(-len(maps) // columns)
    figure = Figure(figsize=(max(4 * columns, 7), 4 * rows + 0.3), layout='constrained')
    figure.suptitle(title, fontsize='medium')
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes in panels[len(maps):]:
        axes.set_axis_off()
    for axes, (name, weights) in zip(panels, maps.items(), strict=False):
        drawn = axes.imshow(weights.numpy(), aspect='auto', cmap='viridis', vmin=0, interpolation='nearest')
        axes.set(title=f'block {name}', xlabel='key, in rows of the grid', ylabel='query, in rows of the grid')
        figure.colorbar(drawn, ax=axes)
    return figure
