"""Collects attention weights of chosen blocks, maps their queries and keys to image positions, and draws them."""
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, cast

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from cpvt_mm.archs import STRIDES
from cpvt_mm.models import CPVT, PyramidCPVT
from cpvt_mm.models.layers import Attention, Block, PyramidStage
from cpvt_mm.tokens.grid import Grid
from lab.features import panels
from openmmlab_tools.errors import UserError
from openmmlab_tools.texts import figure_text, label

DPI = 100
# A pixel, x and y, or the class token.
Query = tuple[int, int] | Literal['cls']


@dataclass(frozen=True)
class AttentionMap:
    """Attention of one block for one image.

    Attributes:
        weights: Weight of each key for each query, `(heads, E + H * W, E + H' * W')`; each query's weights sum to 1.
        grid: Grid of the queries, H x W, of which a cell has `stride` pixels; E class tokens precede them.
        key_grid: Grid of the keys, H' x W'.
    """
    weights: Tensor
    grid: Grid
    key_grid: Grid
    stride: int

    @property
    def key_cell(self) -> tuple[float, float]:
        """Height and width in pixels of a cell of `key_grid`."""
        return self.stride * self.key_grid.cell_height, self.stride * self.key_grid.cell_width

    def of_query(self, query: Query) -> Tensor:
        """Returns the attention weights from one query to the keys on the grid, `(heads, H', W')`, without class
        tokens.
        """
        row = 0
        if query != 'cls':
            x, y = query
            num_extra = self.weights.shape[1] - self.grid.size
            row = num_extra + y // self.stride * self.grid.width + x // self.stride
        keys = self.weights[:, row, -self.key_grid.size:]
        return keys.unflatten(1, (self.key_grid.height, self.key_grid.width))

    def of_all(self) -> Tensor:
        """Returns the weights of all keys for all queries on the grid, averaged over heads: `(H * W, H' * W')`."""
        return self.weights[:, -self.grid.size:, -self.key_grid.size:].mean(dim=0)

    def distance(self) -> float:
        """Returns how far the key with the largest weight, averaged over heads, is from its query, in pixels: the mean
        over all queries, from centre to centre of the cells.
        """
        keys = self.of_all().argmax(dim=1)
        queries = torch.arange(self.grid.size, device=keys.device)
        height, width = self.key_cell
        rows = (keys // self.key_grid.width + 0.5) * height - (queries // self.grid.width + 0.5) * self.stride
        columns = (keys % self.key_grid.width + 0.5) * width - (queries % self.grid.width + 0.5) * self.stride
        return torch.hypot(rows, columns).mean().item()


def name_blocks(backbone: CPVT | PyramidCPVT) -> dict[str, tuple[Block, int]]:
    """Names blocks '0', ... in CPVT and '0.0' (stage, block), ... in PyramidCPVT; gives also the strides in pixels."""
    if isinstance(backbone, CPVT):
        return {str(i): (cast(Block, block), backbone.patch_embed.patch_size)
                for i, block in enumerate(backbone.blocks)}
    return {f'{i}.{j}': (cast(Block, block), STRIDES[i]) for i, stage in enumerate(backbone.stages)
            for j, block in enumerate(cast(PyramidStage, stage).blocks)}


def default_blocks(backbone: CPVT | PyramidCPVT) -> list[str]:
    """Returns the names of the first blocks after a PEG: the second of each stage, or its only one."""
    if isinstance(backbone, CPVT):
        return [str(min(1, len(backbone.blocks) - 1))]
    return [f'{i}.{min(1, depth - 1)}' for i, depth in enumerate(backbone.depths)]


@torch.no_grad()
def collect(backbone: CPVT | PyramidCPVT, image: Tensor, names: Sequence[str]) -> dict[str, AttentionMap]:
    """Runs a backbone in eval mode on an image `(1, 3, H, W)`, and returns the attention of the named blocks."""
    blocks = name_blocks(backbone)
    for name in names:
        if name not in blocks:
            raise UserError(f'block {name} does not exist: choose one of {", ".join(blocks)}.')
    maps: dict[str, AttentionMap] = {}

    def keep(attn: Attention, args: tuple, name: str) -> None:
        q, k, _, biases, keys = attn.project(*args)
        logits = q @ k.mT * attn.head_dims**-0.5
        weights = (logits + biases[0] if biases else logits).softmax(dim=-1)
        maps[name] = AttentionMap(weights[0], args[1].grids[0], keys.grids[0], blocks[name][1])

    hooks = [blocks[name][0].attn.register_forward_pre_hook(partial(keep, name=name)) for name in names]
    try:
        backbone(image)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: maps[name] for name in names}


class Average(NamedTuple):
    """The attention of a block, averaged over images of one size.

    Attributes:
        weights: Weights `(H * W, H' * W')`, averaged over heads (arXiv 2102.10882).
        distance: The mean of `AttentionMap.distance`, in pixels.
    """
    weights: Tensor
    distance: float


def average(backbone: CPVT | PyramidCPVT, images: Iterable[Tensor], names: Sequence[str]) -> dict[str, Average]:
    """Averages the attention of blocks over images of the same size."""
    weights: dict[str, Tensor] = {}
    distances: dict[str, list[float]] = {name: [] for name in names}
    for image in images:
        for name, attention in collect(backbone, image, names).items():
            weights[name] = weights.get(name, 0) + attention.of_all()
            distances[name].append(attention.distance())
    return {name: Average(total / len(distances[name]), sum(distances[name]) / len(distances[name]))
            for name, total in weights.items()}


def parse_query(words: Sequence[str], backbone: CPVT | PyramidCPVT, height: int, width: int) -> Query:
    """Reads 'cls', or x and y of a pixel of an input of `height` x `width`."""
    if list(words) == ['cls']:
        if getattr(backbone, 'cls_token', None) is None:
            raise UserError('--query cls is not possible, because the backbone has no class token: pass a pixel, X Y.')
        return 'cls'
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise UserError(f'--query is {" ".join(words)!r}, but must be two whole numbers, X Y, or cls.')
    x, y = map(int, words)
    if x >= width or y >= height:
        raise UserError(f'--query {x} {y} is outside of the resized image of {height} x {width} pixels (height x '
                        f'width): choose X from 0 to {width - 1} and Y from 0 to {height - 1}.')
    return x, y


@dataclass(frozen=True)
class Overlay:
    """A map to draw over an image: non-negative values `(H', W')`, and height and width of a cell in pixels."""
    title: str
    values: Tensor
    cell: tuple[float, float]


def overlay_figure(image: np.ndarray, overlays: Sequence[Sequence[Overlay]], mark: tuple[int, int] | None,
                   title: str) -> Figure:
    """Draws rows of overlays on an RGB image `(H, W, 3)`, from transparent at 0 to yellow, and a cross at (x, y)."""
    height, width = image.shape[:2]
    columns = max(map(len, overlays))
    panel = 2.4
    figure = Figure(figsize=(panel * columns, (panel * height / width + 0.4) * len(overlays) + 0.4),
                    layout='constrained')
    figure.suptitle(figure_text(title), fontsize='medium')
    for row, row_overlays in zip(figure.subplots(len(overlays), columns, squeeze=False), overlays, strict=True):
        for unused in row[len(row_overlays):]:
            unused.set_axis_off()
        for axes, overlay in zip(row, row_overlays, strict=False):
            _draw_overlay(axes, image, overlay, mark)
            axes.set_title(label(overlay.title), fontsize='small')
    return figure


def overlay_image(image: np.ndarray, overlay: Overlay, mark: tuple[int, int], side: int = 512) -> np.ndarray:
    """Draws one overlay as in `overlay_figure`: `(H', W', 3)` RGB, uint8; the longer side has `side` pixels."""
    height, width = (max(round(length * side / max(image.shape[:2])), 1) for length in image.shape[:2])
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


def grid_figure(maps: dict[str, Average], title: str) -> Figure:
    """Draws attention as matrices, `(queries, keys)`: a row for each query and a column for each key."""
    figure, drawn = panels(len(maps), 4, 4, 4, title)
    for axes, (name, block) in zip(drawn, maps.items(), strict=True):
        image = axes.imshow(block.weights.numpy(), aspect='auto', cmap='viridis', vmin=0, interpolation='nearest')
        axes.set(title=f'block {name}: {block.distance:.0f} pixels', xlabel='key, in rows of the grid',
                 ylabel='query, in rows of the grid')
        figure.colorbar(image, ax=axes)
    return figure
