"""Paints boxes, masks and label maps, with lines and texts that suit the image; a hook that paints predictions."""
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from mmengine.hooks import Hook
from mmengine.registry import VISUALIZERS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement, PixelData
from mmengine.visualization import Visualizer
from pycocotools import mask as coco_mask

from openmmlab_runs.files import unique_name
from openmmlab_runs.fonts import choose_fonts, in_any_script
from openmmlab_runs.libraries import require
from openmmlab_runs.texts import label

from .bands import read_view
from .masks import runs_of

# mmdet's lines and texts suit images with a shorter side of SUITABLE pixels. Smaller images get smaller lines and
# texts, at least LEAST times their normal size, because smaller texts are illegible.
SUITABLE, LEAST = 400, 0.6
# mmseg's texts shrink with the image; they are illegible if its shorter side has fewer pixels than this.
LEGIBLE = 144
# How much of what is painted covers the image; points of lines and texts; boxes with fewer pixels get half of FONT.
ALPHA, LINE, FONT, LARGE = 0.8, 2.5, 13, 30_000
JITTER = 50  # of the colours of masks, from 0 to 255
POINTS = 72  # of an inch


class PaintPredictionsHook(Hook):
    """Paints every test image with the library's visualizer: truth on the left, prediction on the right, or the labels
    of a classifier. Files are `<name of image>.png`, or `<name of video>_<name of frame>.png`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.names: set[str] = set()

    def before_test(self, runner: Runner) -> None:
        write_any_script(runner.visualizer)
        if runner.cfg.default_scope != 'mmseg':
            runner.visualizer.dataset_meta = labelled(runner.visualizer.dataset_meta or {})

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None,
                        outputs: Sequence[BaseDataElement] | None = None) -> None:
        for sample in outputs or ():
            if hasattr(sample, 'video_data_samples'):
                self._paint_video(runner, sample.video_data_samples)
            else:
                self._paint(runner, runner.visualizer, sample, Path(sample.img_path).stem)

    def _paint_video(self, runner: Runner, frames: Sequence[BaseDataElement]) -> None:
        """Paints frames as for detectors: mmdet's visualizer of videos needs seaborn, and fails on the ground truth."""
        visualizer = VISUALIZERS.get('mmdet.DetLocalVisualizer')()
        visualizer.dataset_meta = runner.visualizer.dataset_meta
        write_any_script(visualizer)
        for frame in frames:
            frame.pred_instances = frame.pred_track_instances
            path = Path(frame.img_path)
            self._paint(runner, visualizer, frame, f'{path.parent.name}_{path.stem}')

    def _paint(self, runner: Runner, visualizer: Visualizer, sample: BaseDataElement, name: str) -> None:
        image = read_view(sample.img_path)
        name = unique_name(name, self.names)  # an image of the same name may be in another folder
        file = str(self.folder / f'{name}.png')
        if hasattr(visualizer, 'visualize_cls'):
            visualizer.visualize_cls(image, sample, name=name, out_file=file)
        elif runner.cfg.default_scope == 'mmseg':
            visualizer.add_datasample(name, image, sample, out_file=file, with_labels=are_legible(image))
        else:
            size_to_image(visualizer, image)
            visualizer.add_datasample(name, image, sample, out_file=file)


def labelled(metainfo: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metainfo of a dataset with classes for visualizers that draw with matplotlib: all but mmseg's."""
    classes = metainfo.get('classes')
    return {**metainfo, 'classes': classes and tuple(map(label, classes))}


def write_any_script(visualizer: Visualizer) -> None:
    """Lets a visualizer of mmdet, mmseg or mmpretrain write names in fonts that have their letters."""
    if hasattr(visualizer, '_get_center_loc'):  # mmseg's, which writes with OpenCV

        def draw(image: np.ndarray, sem_seg: PixelData, classes: Sequence[str], palette: Any, with_labels: bool = True
                 ) -> np.ndarray:
            names = [label(name) if with_labels else '' for name in classes]
            painted = paint_label_map(image, np.asarray(sem_seg.cpu().data)[0], names, palette, visualizer.alpha)
            visualizer.set_image(painted)
            return painted

        visualizer._draw_sem_seg = draw
        return
    write: Any = visualizer.draw_texts

    def draw_texts(*args: Any, **kwargs: Any) -> Visualizer:
        drawn = write(*args, **kwargs)
        for text in visualizer.ax_save.texts:
            choose_fonts(text)
        return drawn

    visualizer.draw_texts = draw_texts


def size_to_image(visualizer: Visualizer, image: np.ndarray) -> None:
    """Makes mmdet's visualizer draw thinner lines and smaller texts if the image, `(H, W, 3)`, is small."""
    # matplotlib measures lines and texts in inches, so the dpi scales them; the number of pixels stays the same.
    visualizer.dpi = rcParams['figure.dpi'] * min(max(min(image.shape[:2]) / SUITABLE, LEAST), 1)
    visualizer.fig_save.set_dpi(visualizer.dpi)


def are_legible(image: np.ndarray) -> bool:
    """Returns whether mmseg's texts are legible on an image, `(H, W, 3)`."""
    return min(image.shape[:2]) >= LEGIBLE


def paint_boxes(image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, texts: Sequence[str],
                masks: Sequence[dict[str, Any]] | None = None, palette: Any = None) -> np.ndarray:
    """Paints boxes, texts above them or at their top, and masks; memory does not grow with their number.

    Args:
        image: `(H, W, 3)`, RGB, uint8; it is not changed.
        boxes: `(N, 4)`: left, top, right and bottom, in pixels.
        labels: `(N,)`: indices into the palette.
        texts: What to write at each box; '' for nothing.
        masks: RLE of each box, as in `Prediction`. Defaults to None.
        palette: The RGB colour of each label, or a name of mmdet's palettes. Defaults to None: random, but always the
            same.

    Returns:
        `(H, W, 3)`, RGB, uint8.
    """
    colours = _colours(palette, int(labels.max(initial=-1)) + 1)
    painted = image.copy()
    shades = np.random.default_rng(0)  # so that masks of one class differ, and are the same in each picture
    for index, mask in zip(labels, masks or (), strict=False):
        _paint_mask(painted, mask, np.clip(np.array(colours[index]) + shades.integers(-JITTER, JITTER + 1, 3), 0, 255))
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    with _canvas(painted) as axes:
        for (left, top, right, bottom), index, text, area in zip(boxes, labels, texts, areas, strict=True):
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, alpha=ALPHA, linewidth=LINE,
                                     edgecolor=np.divide(colours[index], 255)))
            size = FONT if area > LARGE else FONT / 2
            if top < 2 * size * axes.figure.dpi / POINTS:  # no room above the box
                _write(axes, left + LINE, top + LINE, text, size, 'left', 'top')
            else:
                _write(axes, left, top - LINE, text, size, 'left', 'bottom')
    return painted


def paint_label_map(image: np.ndarray, label_map: np.ndarray, names: Sequence[str], palette: Any = None,
                    alpha: float = ALPHA) -> np.ndarray:
    """Paints a label map `(H, W)`, and the names of its classes, each into the middle of its widest part.

    Args:
        image: `(H, W, 3)`, RGB, uint8; it is not changed.
        label_map: `(H, W)`; values without a name, such as 255, are painted black.
        names: What to write on each class; '' for nothing.
        palette: As in `paint_boxes`.
        alpha: How much of a colour covers the image, from 0 to 1. Defaults to 0.8.

    Returns:
        `(H, W, 3)`, RGB, uint8.
    """
    colours = np.zeros((max(len(names), int(label_map.max()) + 1), 3), np.uint8)
    colours[:len(names)] = _colours(palette, len(names))[:len(names)]
    painted = cv2.addWeighted(image, 1 - alpha, colours[label_map], alpha, 0)
    with _canvas(painted) as axes:
        for index, name in enumerate(names):
            cells = (label_map == index).astype(np.uint8)
            if name and cells.any():
                # Beyond the border of the image is another class.
                depths = cv2.distanceTransform(np.pad(cells, 1), cv2.DIST_L2, 3)[1:-1, 1:-1]
                y, x = np.unravel_index(depths.argmax(), depths.shape)
                _write(axes, float(x), float(y), name, FONT, 'center', 'center')
    return painted


def _colours(palette: Any, count: int) -> Sequence[Sequence[int]]:
    require('mmdet')
    from mmdet.visualization.palette import get_palette  # takes a tuple for one colour
    if not isinstance(palette, str | None):
        palette = [*palette] if len(palette) >= count else None
    return get_palette(palette, count)


def _paint_mask(image: np.ndarray, mask: dict[str, Any], colour: np.ndarray) -> None:
    """Paints an RLE mask, with a white outline, on an image in place; the time depends on the size of the object."""
    left, top, width, height = coco_mask.toBbox(mask).astype(int)
    runs = runs_of(mask['counts'])  # of zeros and ones in turns, down one column after another
    assert runs is not None
    ends = runs.cumsum()
    lengths = ends[1::2] - ends[:-1:2]
    places = np.arange(lengths.sum()) + np.repeat(ends[:-1:2] - (lengths.cumsum() - lengths), lengths)
    cells = np.zeros((height, width), np.uint8)
    cells[places % mask['size'][0] - top, places // mask['size'][0] - left] = 1
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
