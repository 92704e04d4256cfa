"""Draws how well the boxes of a test are found, by the least score that counts."""
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from mmengine.dist import all_gather_object, is_main_process

from openmmlab_runs.files import write_figure
from openmmlab_runs.texts import label

from .confusion import IOU, Confusion
from .curves import RECALLS, Curve, curves_of

THRESHOLDS = np.linspace(0, 1, 201)
MAX_COLOURS = 10  # as many classes, those with most objects, have a colour and a name


def score_curves(confusion: Confusion) -> list[Curve | None] | None:
    """Returns the curve of each class, of the boxes of all processes, in the main process; None without boxes."""
    found = {path: boxes for part in all_gather_object(confusion.found) for path, boxes in part.items()}
    if not found or not is_main_process():
        return None
    annotated = [dict(_entry(path, one['bbox'], one['bbox_label']), iscrowd=int(one.get('ignore_flag', 0)))
                 for path in found for one in confusion.annotated[path]]
    predicted = [dict(_entry(path, box, label), score=score) for path, boxes in found.items()
                 for box, label, score in zip(*(part.tolist() for part in boxes), strict=True)]
    return curves_of(annotated, predicted, len(confusion.classes), IOU)


def _entry(path: str, box: Sequence[float], label: int) -> dict[str, Any]:
    left, top, right, bottom = box
    return dict(image_id=path, category_id=label, bbox=[left, top, right - left, bottom - top])


def draw_curves(curves: Sequence[Curve | None], classes: Sequence[str], path: Path) -> None:
    """Draws precision by recall, and F1 by score, of each class and their mean; a dot is at the best score."""
    known = sorted(((curve, name) for curve, name in zip(curves, classes, strict=True) if curve),
                   key=lambda pair: -pair[0].objects)
    figure = Figure((13, 4.5), layout='constrained')
    left, right = figure.subplots(1, 2)
    left.set(title=f'precision by recall, at IoU {IOU}', xlabel='recall', ylabel='precision')
    right.set(title='F1 by score', xlabel='score that boxes exceed', ylabel='F1')
    for axes in (left, right):
        axes.set(xlim=(0, 1), ylim=(0, 1.02))
    for index, (curve, name) in enumerate(known):
        look: dict[str, Any] = dict(color='0.75', linewidth=0.6, zorder=1)
        if index < MAX_COLOURS:
            look = dict(color=f'C{index}', zorder=2, label=f'{label(name)} ({curve.objects} objects)')
            if best := curve.best():
                right.plot(*best, 'o', color=f'C{index}')
                look['label'] += f': F1 {best[1]:.2f} above {best[0]:.2f}'
        left.plot(RECALLS, curve.precision_from(), **look)
        right.plot(THRESHOLDS, curve.f1_above(THRESHOLDS), **look)
    if len(known) > 1:
        mean: dict[str, Any] = dict(color='black', linewidth=2.5, zorder=3, label=f'mean of {len(known)} classes')
        left.plot(RECALLS, np.mean([curve.precision_from() for curve, _ in known], axis=0), **mean)
        right.plot(THRESHOLDS, np.mean([curve.f1_above(THRESHOLDS) for curve, _ in known], axis=0), **mean)
    without = len(classes) - len(known)
    if known:
        right.legend(loc='center left', bbox_to_anchor=(1, 0.5), fontsize=8,
                     title=f'classes without objects: {without}' if without else None)
    write_figure(path, figure)
