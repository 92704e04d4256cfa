"""Counts which classes a model takes for which: boxes or pixels by their true and their predicted class."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from hotcoco import COCO
from matplotlib.figure import Figure
from mmengine.dist import all_gather_object
from torch import Tensor

from openmmlab_runs.data.datasets import known_classes
from openmmlab_runs.files import write_figure
from openmmlab_runs.texts import label

from .matching import SCORE, match, match_pixels


class Confusion:
    """Counts pairs of a true and a predicted class of n in a validation or test, for boxes or pixels.

    `counts` of each image are `(n + 1, n + 1)`, sparse. The index n is for no box, or for no class of the data. Boxes
    are those of the metric of COCO, and are counted if the config has it.
    """

    def __init__(self, loop: Any) -> None:
        known = known_classes(loop.dataloader.dataset)
        self.classes = list(known.names[:known.things]) if known else []  # stuff has no boxes
        self.metrics = loop.evaluator.metrics
        self.ignored = next((one.ignore_index for one in self.metrics if hasattr(one, 'ignore_index')), 255)
        self.counts: dict[str, Tensor] = {}  # of pixels, by image

    def add(self, samples: Sequence[Any]) -> None:
        for sample in samples if self.classes else ():
            path = getattr(sample, 'img_path', '')  # the pipeline may leave it out
            if path and hasattr(sample, 'pred_sem_seg') and hasattr(sample, 'gt_sem_seg'):
                maps = [part.data[0].numpy(force=True) for part in (sample.gt_sem_seg, sample.pred_sem_seg)]
                counts = match_pixels(maps[0], maps[1], len(self.classes), self.ignored)
                self.counts[path] = torch.from_numpy(counts).to_sparse()

    def total(self) -> Tensor | None:
        """Returns the counts of all processes, each image once, `(n + 1, n + 1)`; None if there are none."""
        self.counts = {path: counts for part in all_gather_object(self.counts) for path, counts in part.items()}
        if self.counts:
            return torch.stack([*self.counts.values()]).sum(0).to_dense()
        # Only the main process has the boxes of all.
        counts = match(*self.boxes, within_classes=False).table(SCORE) if self.boxes else None
        return all_gather_object(None if counts is None else torch.from_numpy(counts))[0]

    @property
    def boxes(self) -> tuple[COCO, COCO] | None:
        """The annotations and predictions of boxes that the metric has compared; None in other processes."""
        return next((one.compared for one in self.metrics if getattr(one, 'compared', None)), None)

    def by_class(self, total: Tensor) -> dict[str, list[float]]:
        """Returns columns with a number for each class: shares of boxes are up to 1, those of pixels in percent."""
        hits, true, predicted = total.diagonal()[:-1].double(), total.sum(1)[:-1], total.sum(0)[:-1]
        columns = {'recall': hits / true, 'precision': hits / predicted}
        if not self.counts:
            columns = {'boxes': true, **columns}
        else:
            columns = {'share': true / true.sum(), 'IoU': hits / (true + predicted - hits), **columns}
            columns = {name: 100 * column for name, column in columns.items()}
        return {name: column.tolist() for name, column in columns.items()}

    def draw(self, total: Tensor, path: Path, title: str) -> None:
        names = [label(name) for name in (*self.classes, *(['no box'] if not self.counts else []))]
        shares = (total / total.sum(1, keepdim=True)).nan_to_num()[:len(names), :len(names)].numpy()
        inches = 3 + 0.45 * min(len(names), 40)
        figure = Figure((inches + 1, inches), layout='constrained')
        axes = figure.add_subplot(title=title, xlabel='predicted', ylabel='true')
        figure.colorbar(axes.imshow(shares, cmap='Blues', vmin=0, vmax=1), label='share of the true class', shrink=0.8)
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_yticks(range(len(names)), names)
        write_figure(path, figure)
