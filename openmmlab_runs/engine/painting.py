"""A hook that paints predictions, and the sizes of lines and texts that suit an image."""
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
from matplotlib import rcParams
from mmengine.fileio import get
from mmengine.hooks import Hook
from mmengine.registry import VISUALIZERS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from openmmlab_runs.texts import label

# mmdet's lines and texts suit images with a shorter side of SUITABLE pixels. Smaller images get smaller lines and
# texts, at least LEAST times their normal size, because smaller texts are illegible.
SUITABLE, LEAST = 400, 0.6
# mmseg's texts shrink with the image; they are illegible if its shorter side has fewer pixels than this.
LEGIBLE = 144


class PaintPredictionsHook(Hook):
    """Paints every test image with the library's visualizer: truth on the left, prediction on the right, or the labels
    of a classifier. Files are `<name of image>.png`, or `<name of video>_<name of frame>.png`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.names: set[str] = set()

    def before_test(self, runner: Runner) -> None:
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
        for frame in frames:
            frame.pred_instances = frame.pred_track_instances
            path = Path(frame.img_path)
            self._paint(runner, visualizer, frame, f'{path.parent.name}_{path.stem}')

    def _paint(self, runner: Runner, visualizer: Visualizer, sample: BaseDataElement, name: str) -> None:
        image = mmcv.imfrombytes(get(sample.img_path), channel_order='rgb')
        if name in self.names:  # an image of the same name in another folder
            name = f'{name}_{len(self.names)}'
        self.names.add(name)
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


def size_to_image(visualizer: Visualizer, image: np.ndarray) -> None:
    """Makes mmdet's visualizer draw thinner lines and smaller texts if the image, `(H, W, 3)`, is small."""
    # matplotlib measures lines and texts in inches, so the dpi scales them; the number of pixels stays the same.
    visualizer.dpi = rcParams['figure.dpi'] * min(max(min(image.shape[:2]) / SUITABLE, LEAST), 1)
    visualizer.fig_save.set_dpi(visualizer.dpi)


def hide_texts_at_will(visualizer: Visualizer) -> None:
    """Lets mmdet's visualizer, which has no option for it, leave out texts while its attribute `hides_texts` is set."""
    draw: Any = visualizer.draw_texts
    visualizer.hides_texts = False
    visualizer.draw_texts = lambda *args, **kwargs: visualizer if visualizer.hides_texts else draw(*args, **kwargs)


def are_legible(image: np.ndarray) -> bool:
    """Returns whether mmseg's texts are legible on an image, `(H, W, 3)`."""
    return min(image.shape[:2]) >= LEGIBLE
