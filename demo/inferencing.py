"""Paints predictions on any images, with the inferencers of mmdet and mmseg."""
import importlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.infer import BaseInferencer
from mmengine.registry import MODELS, DefaultScope
from mmengine.visualization import Visualizer

from cpvt_mm.data.classes import trained_classes
from cpvt_mm.data.datasets import build_unread
from cpvt_mm.engine.painting import are_legible, size_to_image
from cpvt_mm.errors import UserError, explain, first_line
from cpvt_mm.files import read_image
from cpvt_mm.weights.reading import check_fits, read_checkpoint, readable

INFERENCERS = {'mmdet': 'DetInferencer', 'mmseg': 'MMSegInferencer'}
# A photo of most cameras. A segmentor needs memory for all classes at all pixels of the file: 10 GB for the 150 classes
# of ADE20K, also in windows (mode 'slide').
MAX_PIXELS = 16_000_000


def build_inferencer(cfg: Config, checkpoint: str | Path, device: str | None = None) -> BaseInferencer:
    """Builds the inferencer of a config's library, without a progress bar; the checkpoint must fit completely.

    Names of classes are those of the checkpoint, or of the config's test dataset if the checkpoint has none.

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
    content = read_checkpoint(checkpoint)
    with DefaultScope.overwrite_default_scope(scope):
        check_fits(MODELS.build(cfg.model), checkpoint, content)
    names = trained_classes(content)
    del content  # frees memory; the inferencer reads the file again
    if cfg.get('visualizer'):
        cfg.visualizer.vis_backends = None  # only the caller writes files
    cls = getattr(importlib.import_module(f'{scope}.apis'), INFERENCERS[scope])
    with readable(checkpoint) as local:
        inferencer = cls(cfg, local, device=device)
    inferencer.show_progress = False
    if not names:  # it would take those of COCO or of Cityscapes
        with DefaultScope.overwrite_default_scope(scope):
            metainfo = build_unread(cfg.test_dataloader.dataset).metainfo
        # mmdet reads the one, mmseg the other.
        inferencer.visualizer.dataset_meta = inferencer.model.dataset_meta = {
            key: metainfo.get(key) for key in ('classes', 'palette')}
    return inferencer


def paint(inferencer: BaseInferencer, path: str | Path, labels: bool = True, score_thr: float = 0.3,
          max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Paints the prediction on an image file.

    Args:
        inferencer: See `build_inferencer`.
        path: The image.
        labels: Whether to write class names and scores, if they are legible on the image. Defaults to True.
        score_thr: A detector's boxes and masks are painted only if their score is above this. Defaults to 0.3, as in
            mmdet.
        max_pixels: Larger images are refused. Defaults to 16 million.

    Returns:
        `(H, W, 3)` RGB, uint8.

    Raises:
        UserError: If the image cannot be read, has more pixels, or the model fails on it.
    """
    image, visualizer = read_image(path, max_pixels=max_pixels), inferencer.visualizer
    try:
        if 'with_labels' in inferencer.visualize_kwargs:  # mmseg
            painted = inferencer(str(path), return_vis=True, with_labels=labels and are_legible(image))['visualization']
        else:
            size_to_image(visualizer, image)
            with nullcontext() if labels else without_texts(visualizer):
                painted = inferencer(str(path), return_vis=True, pred_score_thr=score_thr)['visualization']
    except Exception as error:  # models can raise any error, such as for a line of one pixel
        raise UserError(f'image {path} cannot be predicted ({explain(error, inferencer.model)}): scale it, or leave it '
                        'out.') from error
    return painted[0] if isinstance(painted, list) else painted  # mmseg returns a single image without a list


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
