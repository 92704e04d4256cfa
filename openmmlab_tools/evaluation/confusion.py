"""Counts which classes a model takes for which: boxes or pixels by their true and their predicted class."""
import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hotcoco import COCO
from matplotlib.figure import Figure
from mmengine.dist import all_gather_object
from torch import Tensor

from openmmlab_tools.files import write_figure
from openmmlab_tools.texts import label

from .gathered import Gathered
from .matching import SCORE, Matches, match
from .thresholds import best_scores

KINDS = dict(bbox='box', segm='mask')
FEW = 12  # classes whose cells have room for two lines
DRAWN = 30  # classes; a picture of a thousand took 26 seconds at each validation


class Confusion:
    """Counts pairs of true and predicted classes in a validation or test, for boxes or pixels.

    Boxes come from COCO's metric, so they are counted only if the config contains this metric.
    """

    def __init__(self, gathered: Gathered) -> None:
        self.classes, self.metrics, self.ignored = gathered.classes, gathered.metrics, gathered.ignored
        self.counts = gathered.pixels

    def total(self) -> Tensor | None:
        """Returns the counts of all images, `(n + 1, n + 1)`; None if there are none. The index n is for no box, or for
        no class of the data.
        """
        if self.counts:
            return torch.stack([*self.counts.values()]).sum(0).to_dense()
        # Only the main process has the boxes of all.
        counts = match(*self.boxes, within_classes=False).table(SCORE) if self.boxes else None
        return all_gather_object(None if counts is None else torch.from_numpy(counts))[0]

    @property
    def metric(self) -> Any:
        """The metric that has compared boxes; None in other processes, and for pixels."""
        return next((metric for metric in self.metrics if getattr(metric, 'compared', None)), None)

    @property
    def boxes(self) -> tuple[COCO, COCO] | None:
        """The annotations and predictions of boxes that the metric has compared; None in other processes."""
        return self.metric and self.metric.compared

    @cached_property
    def matches(self) -> Matches | None:
        """The matches of boxes and objects of one class, after the metric has compared them; None without boxes."""
        return match(*self.boxes, within_classes=True) if self.boxes else None

    def by_class(self, total: Tensor) -> dict[str, list[float]]:
        """Returns columns with a number for each class: shares of boxes are up to 1, shares of pixels in percent.

        Boxes match objects of their own class only, as in COCO's metric, whose AP by class has a column for each of its
        kinds. There are no columns of boxes in processes that have none.
        """
        if self.counts:
            hits, true, predicted = total.diagonal()[:-1].double(), total.sum(1)[:-1], total.sum(0)[:-1]
            columns = {'share': true / true.sum(), 'IoU': hits / (true + predicted - hits), 'recall': hits / true,
                       'precision': hits / predicted}
            return {name: (100 * column).tolist() for name, column in columns.items()}
        if self.matches is None:
            return {}
        matches = self.matches
        is_sure, number = matches.scores >= SCORE, len(self.classes)
        boxes, hits = (torch.from_numpy(np.bincount(matches.predicted[chosen], minlength=number))
                       for chosen in (is_sure, is_sure & matches.is_hit))
        objects = torch.from_numpy(matches.objects)
        best = [score or (math.nan, math.nan) for score in best_scores(matches)]
        return {'objects': objects.tolist(),
                **{f'{KINDS[kind]} AP': values for kind, values in self.metric.ap_by_class.items()},
                'box recall': (hits / objects).tolist(), 'box precision': (hits / boxes).tolist(),
                'best box F1': [f1 for _, f1 in best], 'above score': [score for score, _ in best]}

    def draw(self, total: Tensor, path: Path, title: str) -> None:
        """Draws the share of each true class that is predicted as each class, for the `DRAWN` most confused classes.

        Cells have the share in percent, from 0.5 % on. If there are few classes, each cell also has the number of boxes
        or pixels. The row of boxes without an object has only numbers.
        """
        chosen = most_confused(total.numpy())
        if len(chosen) < len(self.classes):
            title += f'\n{len(chosen)} of {len(self.classes):,} classes, which are confused most'
        ends = ('no object', 'no box') if not self.counts else ()
        true, predicted = ([label(name) for name in (*(self.classes[index] for index in chosen), *ends[end:end + 1])]
                           for end in (0, 1))
        drawn = np.ix_(*2 * [[*chosen, *[len(self.classes)] * (not self.counts)]])
        counts = total.numpy()[drawn]
        shares = (total / total.sum(1, keepdim=True)).nan_to_num().numpy()[drawn]
        shares[len(chosen):] = 0  # boxes without an object are no share of a true class
        inches = 3 + max(0.45 * len(true), 0.8 * min(len(true), FEW))
        figure = Figure((inches + 1, inches), layout='constrained')
        axes = figure.add_subplot(title=title, xlabel='predicted', ylabel='true')
        bar = figure.colorbar(axes.imshow(shares, cmap='Blues', vmin=0, vmax=1), shrink=0.8)
        bar.set_label('share of the true class' + '; cells have percent' * (len(true) > FEW))
        axes.set_xticks(range(len(true)), predicted, rotation=90)
        axes.set_yticks(range(len(true)), true)
        size, is_few = min(9, 72 * (inches - 3) / len(true) / 3), len(true) <= FEW  # points: three digits fit
        is_shown = (shares >= 0.005) | is_few | (np.arange(len(true)) == len(chosen))[:, None]
        for row, column in np.argwhere(counts * is_shown):  # a text takes about a millisecond
            share, count = shares[row, column], f'{counts[row, column]:,}'
            text = count if row == len(chosen) else f'{100 * share:.0f}'
            axes.text(column, row, f'{text} %\n{count}' if is_few and text != count else text, ha='center',
                      va='center', fontsize=size, in_layout=False, color='white' if share > 0.5 else 'black')
        write_figure(path, figure)


def most_confused(total: np.ndarray) -> list[int]:
    """Returns at most `DRAWN` classes, in their order: those with most boxes or pixels that are taken for another
    class, in both directions, and if these are equal, with most boxes that are missed or added.
    """
    wrong = total * ~np.eye(len(total), dtype=bool)
    between, all_wrong = (part.sum(0)[:len(total) - 1] + part.sum(1)[:len(total) - 1] for part in (
        wrong[:-1, :-1], wrong))
    return sorted(np.lexsort((-all_wrong, -between))[:DRAWN].tolist())
