"""A hook that paints predictions."""
from collections.abc import Sequence
from pathlib import Path

import mmcv
from mmengine.fileio import get
from mmengine.hooks import Hook
from mmengine.registry import VISUALIZERS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from .drawing import are_legible, size_to_image


class PaintPredictions(Hook):
    """Paints every test image with the library's visualizer: the ground truth on the left, the prediction right.

    It serves all libraries, whose own hooks differ in the names, formats and folders of what they write. A classifier's
    labels are written on the image, which is not doubled.

    Args:
        folder: The folder for `<image's name>.png`, or `<video's name>_<frame's name>.png`; created if needed.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.names: set[str] = set()

    def after_test_iter(self, runner: Runner, batch_idx: int, data_batch: dict | None = None,
                        outputs: Sequence[BaseDataElement] | None = None) -> None:
        for sample in outputs or ():
            if hasattr(sample, 'video_data_samples'):
                self._paint_video(runner, sample.video_data_samples)
            else:
                self._paint(runner, runner.visualizer, sample, Path(sample.img_path).stem)

    def _paint_video(self, runner: Runner, frames: Sequence[BaseDataElement]) -> None:
        """Paints frames as those of a detector: mmdet's visualizer of videos needs seaborn, and fails on the truth."""
        visualizer = VISUALIZERS.get('mmdet.DetLocalVisualizer')()
        visualizer.dataset_meta = runner.visualizer.dataset_meta
        for frame in frames:
            frame.pred_instances = frame.pred_track_instances
            path = Path(frame.img_path)
            self._paint(runner, visualizer, frame, f'{path.parent.name}_{path.stem}')

    def _paint(self, runner: Runner, visualizer: Visualizer, sample: BaseDataElement, name: str) -> None:
        image = mmcv.imfrombytes(get(sample.img_path), channel_order='rgb')
        if name in self.names:  # an image of another folder
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
