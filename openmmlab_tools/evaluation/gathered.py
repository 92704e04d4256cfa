"""Predictions and truth of a validation or test, gathered once for tables, figures and reports."""
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.dist import all_gather_object
from torch import Tensor

from openmmlab_tools.data.datasets import known_classes

from . import map_report
from .matching import arrays_of, label_map_of, match_pixels


class LabelMaps(NamedTuple):
    """The true and the predicted label map of an image, compressed, and what `map_report.count` returns for them."""
    counts: dict[str, Any]
    shape: tuple[int, ...]
    packed: tuple[bytes, bytes]

    def unpacked(self) -> list[np.ndarray]:
        return [np.frombuffer(zlib.decompress(part), np.uint16).reshape(self.shape) for part in self.packed]


class Gathered:
    """The results of a validation or test by the paths of images, each image once, although wrappers of datasets may
    repeat it. The metric of COCO gathers its boxes by itself.

    Attributes:
        classes: The names of the classes, in panoptic data of things, because stuff has no boxes.
        metrics: The metrics of the loop.
        ignored: The label that the metric of pixels ignores.
        pixels: Pairs of a true and a predicted class of n, `(n + 1, n + 1)`, sparse. The index n is for no class.
        kept: If it `keeps` them, the boxes and masks of each image as arrays in a dict, or its label maps.
    """

    def __init__(self, loop: Any, keeps: bool = False) -> None:
        self.dataset = loop.dataloader.dataset
        known = known_classes(self.dataset)
        self.classes = list(known.names[:known.things]) if known else []
        self.metrics = loop.evaluator.metrics
        self.ignored = next((metric.ignore_index for metric in self.metrics if hasattr(metric, 'ignore_index')), 255)
        self.keeps = keeps
        self.pixels: dict[str, Tensor] = {}
        self.results: dict[str, dict[str, Any] | LabelMaps] = {}

    def add(self, sample: Any) -> dict[str, Any] | LabelMaps | None:
        """Adds a sample, and returns what is kept of it."""
        path = getattr(sample, 'img_path', '')  # the pipeline may leave it out
        if path and self.keeps and 'bboxes' in getattr(sample, 'pred_instances', ()):
            arrays = arrays_of(sample.pred_instances)
            self.results[path] = dict(ori_shape=sample.ori_shape, **{
                key: arrays[key] for key in ('bboxes', 'labels', 'scores', 'masks') if key in arrays})
        if path and self.classes and hasattr(sample, 'pred_sem_seg') and hasattr(sample, 'gt_sem_seg'):
            true, predicted = (label_map_of(part) for part in (sample.gt_sem_seg, sample.pred_sem_seg))
            pairs = match_pixels(true, predicted, len(self.classes), self.ignored)
            self.pixels[path] = torch.from_numpy(pairs).to_sparse()
            if self.keeps and path not in self.results:
                first, second = (zlib.compress(labels.astype(np.uint16).tobytes(), 1) for labels in (true, predicted))
                self.results[path] = LabelMaps(map_report.count(true, predicted, pairs, self.ignored), true.shape,
                                               (first, second))
        return self.results.get(path)

    def merge(self) -> None:
        """Adds what other processes have gathered. All processes must call it."""
        for pixels, results in all_gather_object((self.pixels, self.results)):
            self.pixels.update(pixels)
            self.results.update(results)
