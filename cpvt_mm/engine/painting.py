"""Paints predictions: on any images with the inferencers of mmdet and mmseg, and on all images of a test."""
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
from matplotlib import rcParams
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.fileio import get
from mmengine.hooks import Hook
from mmengine.infer import BaseInferencer
from mmengine.registry import MODELS, VISUALIZERS, DefaultScope
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmengine.visualization import Visualizer

from cpvt_mm.errors import UserError, first_line
from cpvt_mm.weights.mmengine_log import mmengine_log
from cpvt_mm.weights.reading import check_fits

INFERENCERS = {'mmdet': 'DetInferencer', 'mmseg': 'MMSegInferencer'}
# mmdet's lines and texts suit images with a shorter side of SUITABLE pixels. Smaller images get smaller lines and
# texts, at least LEAST times their normal size, because smaller texts are illegible.
SUITABLE, LEAST = 400, 0.6
# mmseg's texts shrink with the image; they are illegible if its shorter side has fewer pixels than this.
LEGIBLE = 144



def build_inferencer(cfg: Config, checkpoint: str | Path, device: str | None = None) -> BaseInferencer:
    """Builds the inferencer of a config's library, without a progress bar; the checkpoint must fit completely.

    Args:
        cfg: A config from `load_config`, for mmdet or mmseg. Changed in place.
        checkpoint: Path or URL.
        device: A device such as 'cpu' or 'cuda:1'. Defaults to None: the one that mmengine finds.

    Raises:
        UserError: If the config is for another library, the device cannot be used, or the checkpoint does not fit.
    """
    scope, device = cfg.default_scope, device or get_device()
    if scope not in INFERENCERS:
        raise UserError(f'config {cfg.filename} is for {scope}, but only predictions of {" and ".join(INFERENCERS)} '
                        'can be painted here: run tools/test.py with --show-dir.')
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # unknown name, or torch is built without support for it
        raise UserError(f'device {device!r} cannot be used ({first_line(error)}): choose another.') from error
    # An inferencer would load the weights that fit and ignore the others.
    with DefaultScope.overwrite_default_scope(scope):
        check_fits(MODELS.build(cfg.model), checkpoint)
    if cfg.get('visualizer'):
        cfg.visualizer.vis_backends = None  # only the caller writes files
    cls = getattr(importlib.import_module(f'{scope}.apis'), INFERENCERS[scope])
    with mmengine_log():
        inferencer = cls(cfg, str(checkpoint), device=device)
    inferencer.show_progress = False
    return inferencer


def paint(inferencer: BaseInferencer, path: str | Path, labels: bool = True, score_thr: float = 0.3) -> np.ndarray:
    """Paints the prediction on an image file.

    Args:
        inferencer: See `build_inferencer`.
        path: The image.
        labels: Whether to write class names and scores, if they are legible on the image. Defaults to True.
        score_thr: A detector's boxes and masks are painted only if their score is above this. Defaults to 0.3, as in
            mmdet.

    Returns:
        `(H, W, 3)` RGB, uint8.
    """
    image, visualizer = mmcv.imread(path), inferencer.visualizer
    if 'with_labels' in inferencer.visualize_kwargs:  # mmseg
        painted = inferencer(str(path), return_vis=True, with_labels=labels and are_legible(image))['visualization']
    else:
        size_to_image(visualizer, image)
        with nullcontext() if labels else without_texts(visualizer):
            painted = inferencer(str(path), return_vis=True, pred_score_thr=score_thr)['visualization']
    return painted[0] if isinstance(painted, list) else painted  # mmseg returns a single image without a list


class PaintPredictionsHook(Hook):
    """Paints every test image with the library's visualizer: the ground truth on the left, the prediction on the right.

    It works for all libraries; their own hooks differ in the names, formats and folders of the files. For a classifier,
    there is one image with the labels written on it.

    Args:
        folder: The folder for `<name of image>.png`, or `<name of video>_<name of frame>.png`; created if needed.
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
        """Paints frames with the visualizer of detectors.

        mmdet's visualizer of videos needs seaborn, and fails on the ground truth.
        """
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


def size_to_image(visualizer: Visualizer, image: np.ndarray) -> None:
    """Makes mmdet's visualizer draw thinner lines and smaller texts if the image, `(H, W, 3)`, is small."""
    # matplotlib measures lines and texts in inches, so the dpi scales them; the number of pixels stays the same.
    visualizer.dpi = rcParams['figure.dpi'] * min(max(min(image.shape[:2]) / SUITABLE, LEAST), 1)
    visualizer.fig_save.set_dpi(visualizer.dpi)


def are_legible(image: np.ndarray) -> bool:
    """Returns whether mmseg's texts are legible on an image, `(H, W, 3)`."""
    return min(image.shape[:2]) >= LEGIBLE


@contextmanager
def without_texts(visualizer: Visualizer) -> Iterator[None]:
    """Disables the texts of a visualizer; mmdet's visualizer has no option for that."""

    def draw_texts(*args: Any, **kwargs: Any) -> Visualizer:
        return visualizer

    visualizer.draw_texts = draw_texts
    try:
        yield
    finally:
        del visualizer.draw_texts
