"""What a report tells of a detector: hotcoco's numbers, the boxes and objects of each image, and suspected labels."""
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hotcoco import COCO, COCOeval
from hotcoco.mask import iou

from .intervals import IOUS, box_metrics, draws, interval

NEAR = 0.1  # the least IoU of a box that is thought to mean an object, as in TIDE (arXiv 2008.08115)
Entry = dict[str, Any]


@dataclass
class Boxes:
    """The objects of a data set, and the boxes that a model finds in it, in COCO's layout.

    Attributes:
        classes: The names of the classes; their category ids count from 1.
        images: Entries with `id`, from 1, `file_name`, which is unique, `width` and `height`.
        objects: Entries with `id`, from 1, `image_id`, `category_id`, `bbox`, `area` of the box, `iscrowd`, and
            `segmentation` if `kinds` has 'segm'.
        boxes: The same with a `score`.
        kinds: 'bbox', and 'segm' if there are masks.
    """
    classes: Sequence[str]
    images: list[Entry]
    objects: list[Entry]
    boxes: list[Entry]
    kinds: Sequence[str] = ('bbox',)

    def __post_init__(self) -> None:
        self.truth = COCO(dict(images=self.images, annotations=self.objects, categories=[
            dict(id=index, name=name) for index, name in enumerate(self.classes, start=1)]))

    def evaluate(self, boxes: Sequence[Entry], kind: str = 'bbox', areas: Sequence[Sequence[float]] = ()) -> COCOeval:
        """Matches boxes to objects, also by areas, in pixels. No box is cut; their ids are their numbers from 1."""
        evaluation = COCOeval(self.truth, self.truth.load_res([*boxes]), kind)
        evaluation.params.max_dets, evaluation.params.iou_thrs = [len(boxes) + 1], [*IOUS]
        evaluation.params.area_rng = [[0, 1e10], *map(list, areas)]
        evaluation.params.area_rng_lbl = ['all', *map(str, range(len(areas)))]
        evaluation.evaluate()
        evaluation.accumulate()
        return evaluation


def matches(data: Boxes, evaluations: Mapping[str, COCOeval]) -> dict[int, Entry]:
    """Returns the matches by ids of images: the `objects` of each class, for each kind the boxes as `box_metrics` takes
    them, and for each object its label and the score of the box that has `found` it at IoU 0.5, 0 for none.
    """
    images: dict[int, Entry] = {one['id']: dict(objects=[0] * len(data.classes), **{kind: [] for kind in evaluations},
                                                found=[]) for one in data.images}
    bits = 1 << np.arange(len(IOUS))
    for kind, evaluation in evaluations.items():
        for one in filter(None, evaluation.eval_imgs):
            image, label = images[one['image_id']], one['category_id'] - 1
            hits, ignored = (bits @ np.array(one[key], int).reshape(len(IOUS), -1) for key in ('dtMatched', 'dtIgnore'))
            image[kind] += [[label, *box] for box in zip(one['dtScores'], hits.tolist(), ignored.tolist(), strict=True)]
            if kind == 'bbox':
                scores = dict(zip(one['dtIds'], one['dtScores'], strict=True))
                counted = [match for match, is_ignored in zip(one['gtMatches'][0], one['gtIgnore'], strict=True)
                           if not is_ignored]
                image['objects'][label] += len(counted)
                image['found'] += [[label, scores.get(match, 0.)] for match in counted]
    return images


def curves(evaluation: COCOeval, images: Sequence[Entry], classes: Sequence[str]) -> list[Entry]:
    """Returns for each class the number of objects, the precision at the recalls 0, 0.01 ... 1, and the best F1 of
    them, with the score that boxes must exceed for it; a class without objects or hits has the score 1.
    """
    recall, found = np.linspace(0, 1, 101), []
    assert evaluation.eval
    for number, name in enumerate(classes):
        precision, scores = (np.array(evaluation.eval[key])[0, :, number, 0, 0] for key in ('precision', 'scores'))
        f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
        best = int(f1.argmax())
        least = float(np.nextafter(np.float32(scores[best]), np.float32(-1))) if f1[best] > 0 else 1.
        found.append(dict(name=name, objects=sum(one['objects'][number] for one in images), f1=max(float(f1[best]), 0.),
                          score=least, precision=np.maximum(precision, 0).tolist()))
    return found


def quarters(areas: np.ndarray) -> list[tuple[float, float]]:
    """Returns the least and the most of quarters of areas; fewer if many are equal. They do not overlap."""
    edges = np.unique(np.quantile(areas, (0, 0.25, 0.5, 0.75, 1)))
    lows = [edges[0], *np.nextafter(edges[1:-1], np.inf)]
    return [*zip(map(float, lows), map(float, edges[1:] if len(edges) > 1 else edges), strict=True)]


def by_size(data: Boxes) -> dict[str, list[Entry]]:
    """Returns AP of the boxes by quarters of the sides of objects and of images: the roots of their areas, in pixels.
    """
    areas = np.array([one['area'] for one in data.objects if not one['iscrowd']])
    pixels = {one['id']: one['width'] * one['height'] for one in data.images}
    parts = dict(objects=quarters(areas) if len(areas) else [], images=quarters(np.array([*pixels.values()])))
    evaluation = data.evaluate(data.boxes, areas=parts['objects'])
    assert evaluation.eval
    precision = np.array(evaluation.eval['precision'])[..., 1:, 0]  # IoU, recall, class, area
    slices = evaluation.slice_by({str(index): [id for id, area in pixels.items() if low <= area <= high]
                                  for index, (low, high) in enumerate(parts['images'])})
    found = dict(objects=[precision[..., index] for index in range(len(parts['objects']))],
                 images=[np.array(slices[str(index)]['AP']) for index in range(len(parts['images']))])
    return {what: [dict(low=low ** 0.5, high=high ** 0.5, AP=_mean_of(values))
                   for (low, high), values in zip(parts[what], found[what], strict=True)] for what in parts}


def _mean_of(values: np.ndarray) -> float | None:
    """Returns the mean without hotcoco's -1, which stands for no objects."""
    return float(values[values > -1].mean()) if (values > -1).any() else None


def suspects(data: Boxes, least: Sequence[float]) -> tuple[np.ndarray, list[Entry]]:
    """Looks for wrong labels by the boxes with a score above that of their class, the surest first.

    Returns:
        How often an object of one class has the box of another, `(C + 1, C + 1)`, the last index being for no object
        or no box; and the boxes that contradict the labels, entries of `boxes` with a `suspect`: 'class', 'place' or
        'missing', and the `label`, the entry of the object that they contradict.
    """
    boxes = [one for one in data.boxes if one['score'] > least[one['category_id'] - 1]]
    # hotcoco's confusion counts boxes on ignored objects as wrong, its matches do not.
    on_ignored = {number for one in filter(None, data.evaluate(boxes).eval_imgs)
                  for number, is_ignored in zip(one['dtIds'], one['dtIgnore'][0], strict=True) if is_ignored}
    boxes = [one for number, one in enumerate(boxes, start=1) if number not in on_ignored]
    evaluation = data.evaluate(boxes)
    told = evaluation.image_diagnostics(IOUS[0], 0)
    objects, free = {one['id']: one for one in data.objects}, dict[tuple[int, int], list[Entry]]()
    for number, status in told['gt_status'].items():
        if status == 'fn':
            free.setdefault((objects[number]['image_id'], objects[number]['category_id']), []).append(objects[number])
    found = {one['dt_id']: (one['type'].removesuffix('_annotation').removeprefix('wrong_').replace('label', 'class'),
                            objects.get(one['gt_id'])) for one in told['label_errors']}
    for number, status in told['dt_status'].items():
        box = boxes[number - 1]
        near = free.get((box['image_id'], box['category_id']), [])
        if status == 'fp' and number not in found and near:
            overlaps = np.array(iou([box['bbox']], [one['bbox'] for one in near], [0] * len(near)))[0]
            if overlaps.max() >= NEAR:
                found[number] = 'place', near[int(overlaps.argmax())]
    return np.array(evaluation.confusion_matrix(IOUS[0])['matrix'], int), sorted((
        dict(boxes[number - 1], suspect=kind, label=label) for number, (kind, label) in found.items()),
        key=lambda one: -one['score'])


def summarize(data: Boxes) -> dict[str, Any]:
    """Returns what a report tells of a detector; all but `metrics` is of boxes. `wrong` of an image is the number of
    boxes that are no hits at IoU 0.5, and of objects that are not found, with the best scores of the classes.
    """
    evaluations = {kind: data.evaluate(data.boxes, kind) for kind in data.kinds}
    images, first = matches(data, evaluations), evaluations['bbox']
    rows, weights = [*images.values()], draws(len(images))
    metrics = {kind: {name: interval(values) for name, values in box_metrics(rows, kind, weights).items()}
               for kind in data.kinds}
    lines = curves(first, rows, data.classes)
    least = [one['score'] for one in lines]
    for one in rows:
        one['wrong'] = sum(box[1] > least[box[0]] and not (box[2] | box[3]) & 1 for box in one['bbox']) + sum(
            score <= least[label] for label, score in one['found'])
    confusion, suspected = suspects(data, least)
    return dict(classes=[*data.classes], metrics=metrics, curves=lines, by_size=by_size(data),
                errors=first.tide_errors(), calibration=first.calibration(), confusion=confusion.tolist(),
                suspects=suspected, images={one['file_name']: images[one['id']] for one in data.images})
