"""Paints boxes, masks, label maps and labels, with lines and texts that suit the image.

mmdet's visualizer holds each mask as an image, and mmseg's writes with OpenCV, which knows no other script than Latin.
"""
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from openmmlab_tools.fonts import in_any_script
from openmmlab_tools.libraries import require
from openmmlab_tools.texts import label

from .masks import cells_of

# Lines and texts suit images with a shorter side of SUITABLE pixels. On smaller images they shrink, but to no less than
# LEAST times their normal size, because smaller texts are illegible.
SUITABLE, LEAST = 400, 0.6
LEGIBLE = 144  # pixels of the shorter side: on smaller images, names of classes hide a label map
# The opacity of paint; the sizes of lines and texts in points. Boxes with fewer pixels than LARGE get half of FONT.
ALPHA, LINE, FONT, LARGE = 0.8, 2.5, 13, 30_000
JITTER = 50  # of the colours of masks, from 0 to 255
POINTS = 72  # of an inch


def paint_boxes(image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, classes: Sequence[str] = (),
                scores: np.ndarray | None = None, masks: Sequence[dict[str, Any]] | None = None, palette: Any = None
                ) -> np.ndarray:
    """Paints boxes, their classes above them or at their top, and masks; memory does not grow with their number.

    Args:
        image: `(H, W, 3)`, RGB, uint8, as the result; it is not changed.
        boxes: `(N, 4)`: left, top, right and bottom, in pixels. They may lie outside of the image, also infinitely far.
        labels: `(N,)`: indices into the classes, which are written if there are any, and the palette.
        scores: `(N,)`, from 0 to 1, to write after the names.
        masks: RLE of each box, as in `Prediction`.
        palette: The RGB colour of each label, or a name of mmdet's palettes. Defaults to random, always the same.
    """
    colours = _colours(palette, int(labels.max(initial=-1)) + 1)
    painted = image.copy()
    shades = np.random.default_rng(0)  # so that masks of one class differ, and are the same in each picture
    for index, mask in zip(labels, masks or (), strict=False):
        _paint_mask(painted, mask, np.clip(np.array(colours[index]) + shades.integers(-JITTER, JITTER + 1, 3), 0, 255))
    names = [label(classes[index]) for index in labels] if classes else [''] * len(labels)
    if classes and scores is not None:
        names = [f'{name}: {100 * score:.1f}' for name, score in zip(names, scores, strict=True)]
    # Some models do not clip boxes to the image, and matplotlib cannot draw what is far outside of it.
    height, width = image.shape[:2]
    boxes = boxes.clip((-width, -height, -width, -height), (2 * width, 2 * height, 2 * width, 2 * height))
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    with _canvas(painted) as axes:
        for (left, top, right, bottom), index, name, area in zip(boxes, labels, names, areas, strict=True):
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, alpha=ALPHA, linewidth=LINE,
                                     edgecolor=np.divide(colours[index], 255)))
            size, left, top = FONT if area > LARGE else FONT / 2, max(left, 0), max(top, 0)
            if top < 2 * size * axes.figure.dpi / POINTS:  # no room above the box
                _write(axes, left + LINE, top + LINE, name, size, 'left', 'top')
            else:
                _write(axes, left, top - LINE, name, size, 'left', 'bottom')
    return painted


def paint_label_map(image: np.ndarray, label_map: np.ndarray, classes: Sequence[str], labels: bool = True,
                    palette: Any = None, alpha: float = ALPHA) -> np.ndarray:
    """Paints a label map `(H, W)` on an image as in `paint_boxes`, and the names of its classes, if they are legible,
    each into the middle of its widest part. Values without a class, such as 255, are painted black. `alpha` is how much
    of a colour covers the image, from 0 to 1.
    """
    colours = np.zeros((max(len(classes), int(label_map.max()) + 1), 3), np.uint8)
    colours[:len(classes)] = _colours(palette, len(classes))[:len(classes)]
    painted = cv2.addWeighted(image, 1 - alpha, colours[label_map], alpha, 0)
    with _canvas(painted) as axes:
        for index, name in enumerate(classes if labels and min(image.shape[:2]) >= LEGIBLE else ()):
            cells = (label_map == index).astype(np.uint8)
            if cells.any():
                # Beyond the border of the image is another class.
                depths = cv2.distanceTransform(np.pad(cells, 1), cv2.DIST_L2, 3)[1:-1, 1:-1]
                y, x = np.unravel_index(depths.argmax(), depths.shape)
                _write(axes, float(x), float(y), label(name), FONT, 'center', 'center')
    return painted


def paint_name(image: np.ndarray, name: str) -> np.ndarray:
    """Returns a copy of an image `(H, W, 3)`, RGB, uint8, with a name at the top left."""
    painted = image.copy()
    with _canvas(painted) as axes:
        _write(axes, LINE, LINE, label(name), FONT, 'left', 'top')
    return painted


def _colours(palette: Any, count: int) -> Sequence[Sequence[int]]:
    require('mmdet')
    from mmdet.visualization.palette import get_palette  # takes a tuple for one colour
    if not isinstance(palette, str | None):
        palette = [*palette] if len(palette) >= count else None
    return get_palette(palette, count)


def _paint_mask(image: np.ndarray, mask: dict[str, Any], colour: np.ndarray) -> None:
    """Paints an RLE mask, with a white outline, on an image in place; the time depends on the size of the object."""
    top, left, cells = cells_of(mask)
    height, width = cells.shape
    part = image[top:top + height, left:left + width]
    part[cells > 0] = part[cells > 0] * (1 - ALPHA) + colour * ALPHA
    for points in cv2.findContours(cells, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)[0]:
        x, y = points[:, 0].T
        part[y, x] = part[y, x] * (1 - ALPHA) + 255 * ALPHA


@contextmanager
def _canvas(image: np.ndarray) -> Iterator[Axes]:
    """Yields axes in pixels of an image, `(H, W, 3)`, which is then changed in place to what was drawn on it."""
    height, width = image.shape[:2]
    # matplotlib measures lines and texts in inches, so the dpi scales them; the number of pixels stays the same.
    dpi = rcParams['figure.dpi'] * min(max(min(height, width) / SUITABLE, LEAST), 1)
    figure = Figure(((width + 0.01) / dpi, (height + 0.01) / dpi), dpi, frameon=False)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.axis('off')
    yield axes
    if axes.patches or axes.texts:
        canvas = FigureCanvasAgg(figure)
        with in_any_script(figure):
            canvas.draw()
        drawn = np.asarray(canvas.buffer_rgba())
        cells = drawn[..., 3] > 0
        opacity = drawn[cells][:, 3:] / 255
        image[cells] = (image[cells] * (1 - opacity) + drawn[cells][:, :3] * opacity).round()


def _write(axes: Axes, x: float, y: float, text: str, size: float, ha: Any, va: Any) -> None:
    if text:
        axes.text(x, y, text, size=size, color='#c8c8c8', clip_on=True, ha=ha, va=va,
                  bbox=dict(facecolor='black', alpha=ALPHA, pad=0.7, edgecolor='none'))
