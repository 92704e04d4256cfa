"""Precision, recall and F1 of the boxes of each class, by the least score that counts: curves, and the best scores."""
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from mmengine.dist import all_gather_object, is_main_process
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import nn

from openmmlab_runs.checkpoints.fitting import hash_weights
from openmmlab_runs.files import read_state, write_figure, write_text
from openmmlab_runs.texts import label

from .confusion import IOU, Confusion

RECALLS = np.linspace(0, 1, 101)  # as in COCO's AP
THRESHOLDS = np.linspace(0, 1, 201)
MAX_COLOURS = 10  # as many classes, those with most objects, have a colour and a name
NAME = 'thresholds.json'  # the file with the best scores, which a test writes and a prediction finds


@dataclass(frozen=True)
class Curve:
    """Counts of one class, if only boxes with some score or a higher one count.

    Attributes:
        objects: The number of objects, at least 1.
        scores: `(N,)`: the scores of boxes, each once, from high to low.
        found: `(N,)`: the number of boxes with that score or a higher one.
        hits: `(N,)`: how many of them match an object.
    """
    objects: int
    scores: np.ndarray
    found: np.ndarray
    hits: np.ndarray

    @property
    def f1(self) -> np.ndarray:
        return 2 * self.hits / (self.found + self.objects)

    def best(self) -> tuple[float, float] | None:
        """Returns the score that boxes must exceed for the best F1, and that F1; None if no object is found.

        The score is half way between those of two boxes.
        """
        if not self.hits.any():
            return None
        index = int(self.f1.argmax())
        last, below = np.float32(np.append(self.scores, 0)[index:index + 2])
        # Rounded as scores are, it must stay below that of the last box.
        return float(min((last + below) / 2, np.nextafter(last, below))), float(self.f1[index])

    def f1_above(self, thresholds: np.ndarray) -> np.ndarray:
        """Returns F1 of the boxes whose score is above thresholds, `(T,)`."""
        return np.append(0, self.f1)[np.searchsorted(-self.scores, -thresholds)]

    def precision_from(self, recalls: np.ndarray = RECALLS) -> np.ndarray:
        """Returns the best precision at recalls or higher ones, `(R,)`, 0 where there is none. Its mean is COCO's AP.
        """
        best = np.maximum.accumulate((self.hits / self.found)[::-1])[::-1]
        return np.append(best, 0)[np.searchsorted(self.hits / self.objects, recalls)]


def score_curves(confusion: Confusion) -> list[Curve | None] | None:
    """Returns the curve of each class, of the boxes of all processes, in the main process; None without boxes."""
    found = {path: boxes for part in all_gather_object(confusion.found) for path, boxes in part.items()}
    if not found or not is_main_process():
        return None

    def entry(path: str, box: Sequence[float], number: int) -> dict[str, Any]:
        left, top, right, bottom = box
        return dict(image_id=path, category_id=number, bbox=[left, top, right - left, bottom - top])

    annotated = [dict(entry(path, one['bbox'], one['bbox_label']), iscrowd=int(one.get('ignore_flag', 0)))
                 for path in found for one in confusion.annotated[path]]
    predicted = [dict(entry(path, box, number), score=score) for path, boxes in found.items()
                 for box, number, score in zip(*(part.tolist() for part in boxes), strict=True)]
    return curves_of(annotated, predicted, len(confusion.classes))


def curves_of(true: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], num_classes: int
              ) -> list[Curve | None]:
    """Returns the curve of each class, None for one without objects. pycocotools matches boxes to objects at `IOU`.

    Args:
        true: Objects with `image_id`, `category_id` (the number of the class, from 0), `bbox` (left, top, width and
            height) and `iscrowd`. Crowds, and boxes on them, do not count.
        found: Boxes with `score` instead of `iscrowd`.
        num_classes: The number of classes.
    """
    images = sorted({one['image_id'] for one in (*true, *found)})
    with redirect_stdout(io.StringIO()):
        evaluation = COCOeval(*(_indexed(boxes, images, num_classes) for boxes in (true, found)), 'bbox')
        evaluation.params.iouThrs, evaluation.params.maxDets = [IOU], [10 ** 9]
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0, 1e10]], ['all']
        evaluation.evaluate()
    matched: list[list[Mapping[str, Any]]] = [[] for _ in range(num_classes)]
    for one in evaluation.evalImgs:
        if one:
            matched[one['category_id']].append(one)
    return [_curve(parts) for parts in matched]


def _indexed(boxes: Sequence[Mapping[str, Any]], images: Sequence[Any], num_classes: int) -> COCO:
    coco = COCO()
    coco.dataset = dict(
        images=[dict(id=image) for image in images], categories=[dict(id=index) for index in range(num_classes)],
        # With 0, an object would count as not found.
        annotations=[{'iscrowd': 0, **one, 'id': index, 'area': one['bbox'][2] * one['bbox'][3]}
                     for index, one in enumerate(boxes, start=1)])
    coco.createIndex()
    return coco


def _curve(parts: Sequence[Mapping[str, Any]]) -> Curve | None:
    """Joins what pycocotools found in each image for one class."""
    objects = sum(int((part['gtIgnore'] == 0).sum()) for part in parts)
    if not objects:
        return None
    counted = ~np.concatenate([part['dtIgnore'][0] for part in parts]).astype(bool)
    scores = np.concatenate([part['dtScores'] for part in parts])[counted]
    is_hit = np.concatenate([part['dtMatches'][0] for part in parts])[counted] > 0
    order = np.argsort(-scores, kind='stable')
    scores, hits = scores[order], is_hit[order].cumsum()
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # boxes of one score count together
    return Curve(objects, scores[last], last + 1, hits[last])


def draw_curves(curves: Sequence[Curve | None], classes: Sequence[str], path: Path) -> None:
    """Draws precision by recall, and F1 by score, of each class; a dot is at the best score."""
    known = sorted(((curve, name) for curve, name in zip(curves, classes, strict=True) if curve),
                   key=lambda pair: -pair[0].objects)
    figure = Figure((13, 4.5), layout='constrained')
    left, right = figure.subplots(1, 2)
    left.set(title=f'precision by recall, at IoU {IOU}', xlabel='recall', ylabel='precision')
    right.set(title='F1 by score', xlabel='score that boxes exceed', ylabel='F1')
    for index, (curve, name) in enumerate(known):
        look: dict[str, Any] = dict(color='0.75', linewidth=0.6, zorder=1)
        if index < MAX_COLOURS:
            look = dict(color=f'C{index}', zorder=2, label=f'{label(name)} ({curve.objects} objects)')
            if best := curve.best():
                right.plot(*best, 'o', color=f'C{index}')
                look['label'] += f': F1 {best[1]:.2f} above {best[0]:.2f}'
        left.plot(RECALLS, curve.precision_from(), **look)
        right.plot(THRESHOLDS, curve.f1_above(THRESHOLDS), **look)
    if known:
        right.legend(loc='center left', bbox_to_anchor=(1, 0.5), fontsize=8)
    write_figure(path, figure)


def write_thresholds(folder: Path, model: nn.Module, classes: Sequence[str], curves: Sequence[Curve | None]) -> Path:
    """Writes the score that boxes of each class must exceed for the best F1, and that F1; null without objects that are
    found. The hash of the weights tells to which checkpoint they belong. Returns the file.
    """
    best = [curve.best() if curve else None for curve in curves]
    content = dict(weights=hash_weights(model), classes={
        name: one and dict(score_thr=one[0], f1=one[1]) for name, one in zip(classes, best, strict=True)})
    write_text(folder / NAME, json.dumps(content, indent=1, ensure_ascii=False))
    return folder / NAME


def find_thresholds(folders: Iterable[Path], model: nn.Module) -> tuple[Path, dict[str, float]] | None:
    """Returns the first file for the weights of a model, and its scores by class; None if there is none.

    It looks into each folder, then into its tests, the newest first.
    """
    files = [file for folder in dict.fromkeys(folders)
             for file in (folder / NAME, *sorted(folder.glob(f'test/*/{NAME}'), reverse=True)) if file.is_file()]
    own = hash_weights(model) if files else ''
    for file in files:
        weights, thresholds = read_state(file, _parsed, 'remove it, or test the checkpoint again') or ('', {})
        if weights == own:
            return file, thresholds
    return None


def _parsed(text: str) -> tuple[str, dict[str, float]]:
    content = json.loads(text)
    return content['weights'], {name: float(one['score_thr']) for name, one in content['classes'].items() if one}
