"""Counts which classes a model takes for which: boxes or pixels by their true and their predicted class."""
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.dist import all_gather_object
from torch import Tensor

from openmmlab_runs.data.datasets import classes_of
from openmmlab_runs.files import write_figure
from openmmlab_runs.texts import label

# Boxes with a lower score do not count, and boxes that overlap less do not match.
SCORE, IOU = 0.3, 0.5


class Confusion:
    """Counts pairs of a true and a predicted class of n in a validation or test, for boxes (`of_boxes`) or pixels.
    `counts` of each image are `(n + 1, n + 1)`, sparse. The index n is for no box, or for no class of the data.
    """

    def __init__(self, loop: Any) -> None:
        self.dataset = loop.dataloader.dataset
        self.classes = classes_of(self.dataset)
        self.ignored = next((one.ignore_index for one in loop.evaluator.metrics if hasattr(one, 'ignore_index')), 255)
        self.of_boxes = False
        self.counts: dict[str, Tensor] = {}
        self.found: dict[str, tuple[np.ndarray, ...]] = {}  # boxes, labels and scores by image

    def add(self, samples: Sequence[Any]) -> None:
        for sample in samples if self.classes else ():
            path = getattr(sample, 'img_path', '')  # the pipeline may leave it out
            boxes: Any = getattr(sample, 'pred_instances', None)
            if path and hasattr(sample, 'pred_sem_seg') and hasattr(sample, 'gt_sem_seg'):
                self.counts[path] = match_pixels(sample, len(self.classes), self.ignored).to_sparse()
            elif hasattr(boxes, 'bboxes') and path in self.annotated:
                self.of_boxes = True
                self.counts[path] = match_boxes(boxes, self.annotated[path], len(self.classes)).to_sparse()
                self.found[path] = tuple(part.cpu().numpy() for part in (
                    boxes.bboxes.float(), boxes.labels, boxes.scores.float()))

    @cached_property
    def annotated(self) -> dict[str, list[dict[str, Any]]]:
        """The annotated boxes by image, in its own pixels (those of a sample may be resized)."""
        length = len(self.dataset) if hasattr(self.dataset, 'get_data_info') else 0
        infos = map(self.dataset.get_data_info, range(length))
        return {info['img_path']: info['instances'] for info in infos if 'img_path' in info and all(
            {'bbox', 'bbox_label'} <= one.keys() for one in info.get('instances', [{}]))}

    def total(self) -> Tensor | None:
        """Returns the counts of all processes, each image once, `(n + 1, n + 1)`; None if there are none."""
        by_image = {path: counts for part in all_gather_object(self.counts) for path, counts in part.items()}
        return torch.stack([*by_image.values()]).sum(0).to_dense() if by_image else None

    def by_class(self, total: Tensor) -> dict[str, list[float]]:
        """Returns columns with a number for each class: shares of boxes are up to 1, those of pixels in percent."""
        hits, true, predicted = total.diagonal()[:-1].double(), total.sum(1)[:-1], total.sum(0)[:-1]
        columns = {'recall': hits / true, 'precision': hits / predicted}
        if self.of_boxes:
            columns = {'boxes': true, **columns}
        else:
            columns = {'share': true / true.sum(), 'IoU': hits / (true + predicted - hits), **columns}
            columns = {name: 100 * column for name, column in columns.items()}
        return {name: column.tolist() for name, column in columns.items()}

    def draw(self, total: Tensor, path: Path, title: str) -> None:
        names = [label(name) for name in (*self.classes, *(['no box'] if self.of_boxes else []))]
        shares = (total / total.sum(1, keepdim=True)).nan_to_num()[:len(names), :len(names)].numpy()
        inches = 3 + 0.45 * min(len(names), 40)
        figure = Figure((inches + 1, inches), layout='constrained')
        axes = figure.add_subplot(title=title, xlabel='predicted', ylabel='true')
        figure.colorbar(axes.imshow(shares, cmap='Blues', vmin=0, vmax=1), label='share of the true class', shrink=0.8)
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        write_figure(path, figure)


def match_boxes(found: Any, annotated: Sequence[dict[str, Any]], num_classes: int) -> Tensor:
    """Matches `pred_instances` of mmdet to `instances` of its datasets; counts the pairs of classes, `(n + 1, n + 1)`.

    In the order of scores, each predicted box takes the free annotated box that it overlaps most. Without a partner,
    the index is n. Predictions on ignored boxes do not count.
    """
    from mmdet.structures.bbox import bbox_overlaps
    counts = torch.zeros(num_classes + 1, num_classes + 1, dtype=torch.long)
    found = found[found.scores >= SCORE].cpu()
    found = found[found.scores.argsort(descending=True)]
    boxes = torch.tensor([one['bbox'] for one in annotated], dtype=torch.float32).reshape(-1, 4)
    true = torch.tensor([one['bbox_label'] for one in annotated], dtype=torch.long)
    free = torch.tensor([not one.get('ignore_flag') for one in annotated], dtype=torch.bool)
    overlaps = bbox_overlaps(found.bboxes.float(), boxes)
    for row, found_label in zip(overlaps, found.labels.clamp(max=num_classes), strict=True):
        if not (row >= IOU).any():
            counts[num_classes, found_label] += 1
        elif free[best := row.argmax()]:  # otherwise it is ignored
            free[best] = False
            overlaps[:, best] = 0
            counts[true[best], found_label] += 1
    counts[:, num_classes] += true[free].bincount(minlength=num_classes + 1)
    return counts


def match_pixels(sample: Any, num_classes: int, ignored: int) -> Tensor:
    """Counts the pairs of classes of pixels, `(n + 1, n + 1)`, as mmseg's IoUMetric does, without those whose true
    label is `ignored`. Predictions of other classes than the n have the index n.
    """
    true, predicted = (part.data.flatten().cpu().long() for part in (sample.gt_sem_seg, sample.pred_sem_seg))
    counted = (true != ignored) & (true < num_classes)
    pairs = true[counted] * (num_classes + 1) + predicted[counted].clamp(max=num_classes)
    return pairs.bincount(minlength=(num_classes + 1) ** 2).reshape(num_classes + 1, num_classes + 1)
