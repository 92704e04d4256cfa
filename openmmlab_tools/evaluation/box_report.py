"""The report of a detector: hotcoco's numbers, the boxes and objects of each image, and suspected labels."""
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from hotcoco import COCO, COCOeval
from hotcoco.mask import iou

from .average_precision import IOUS, box_metrics
from .intervals import intervals
from .matching import evaluate, match
from .thresholds import best_scores
from .ties import by_score, precision_of

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
        boxes: The same with a `score`. They are sorted by it, and their ids are their numbers then.
        kinds: 'bbox', and 'segm' if there are masks.
    """
    classes: Sequence[str]
    images: list[Entry]
    objects: list[Entry]
    boxes: list[Entry]
    kinds: Sequence[str] = ('bbox',)

    def __post_init__(self) -> None:
        self.boxes = [dict(box, id=number) for number, box in enumerate(by_score(self.boxes), start=1)]
        sizes = [dict(image, file_name='') for image in self.images]  # hotcoco refuses names that are not UTF-8
        self.truth = COCO(dict(images=sizes, annotations=self.objects, categories=[
            dict(id=index, name=name) for index, name in enumerate(self.classes, start=1)]))

    def evaluate(self, boxes: Sequence[Entry], kind: str = 'bbox', areas: Sequence[Sequence[float]] = ()) -> COCOeval:
        """Matches boxes to objects, also by areas, in pixels. No box is cut; their ids are their numbers from 1."""
        evaluation = evaluate(self.truth, self.truth.load_res([*boxes]), kind, IOUS, areas)
        evaluation.accumulate()
        return evaluation


def matches(data: Boxes, evaluations: Mapping[str, COCOeval]) -> dict[int, Entry]:
    """Returns the matches by image id.

    Each image has: the `objects` of each class; for each kind the boxes in the form of `box_metrics`; in `found`, for
    each object its label and the score of the box that matches it at IoU 0.5, or 0; and `truth`, a checksum of the
    objects.
    """
    truth: dict[int, int] = defaultdict(int)
    for instance in data.objects:
        fields = [instance.get(key) for key in ('category_id', 'bbox', 'iscrowd', 'segmentation')]
        truth[instance['image_id']] = crc32(repr(fields).encode(), truth[instance['image_id']])
    images: dict[int, Entry] = {image['id']: dict(
        objects=[0] * len(data.classes), **{kind: [] for kind in evaluations}, found=[], wrong=0,
        truth=truth[image['id']]) for image in data.images}
    bits = 1 << np.arange(len(IOUS))
    for kind, evaluation in evaluations.items():
        for result in filter(None, evaluation.eval_imgs):
            image, label = images[result['image_id']], result['category_id'] - 1
            matched, ignored = (np.array(result[key], int).reshape(len(IOUS), -1) for key in ('dtMatched', 'dtIgnore'))
            hits, ignored = bits @ (matched & ~ignored), bits @ ignored  # a box on a crowd is matched, too
            image[kind] += [[label, *box]
                            for box in zip(result['dtScores'], hits.tolist(), ignored.tolist(), strict=True)]
            if kind == 'bbox':
                scores = dict(zip(result['dtIds'], result['dtScores'], strict=True))
                counted = [match for match, is_ignored in zip(result['gtMatches'][0], result['gtIgnore'], strict=True)
                           if not is_ignored]
                image['objects'][label] += len(counted)
                image['found'] += [[label, scores.get(match, 0.)] for match in counted]
    return images


def curves(data: Boxes, evaluation: COCOeval) -> list[Entry]:
    """Returns for each class the number of objects, the precision at COCO's recalls, at IoU 0.5, and the best F1 with
    the score that boxes must exceed for it: 0 and 1 for a class of which nothing is found.
    """
    precision = precision_of(evaluation)[0, :, :, 0, 0].T.clip(0).tolist()  # -1 without objects
    matched = match(evaluation.coco_gt, evaluation.coco_dt, within_classes=True)
    best = [score or (1., 0.) for score in best_scores(matched)]
    return [dict(name=name, objects=objects, score=score, f1=f1, precision=line) for name, objects, (score, f1), line
            in zip(data.classes, matched.objects.tolist(), best, precision, strict=True)]


def quarters(areas: np.ndarray) -> list[tuple[float, float]]:
    """Returns the least and the most of quarters of areas; fewer if many are equal. They do not overlap."""
    edges = np.unique(np.quantile(areas, (0, 0.25, 0.5, 0.75, 1), method='inverted_cdf'))
    lows = [edges[0], *np.nextafter(edges[1:-1], np.inf)]
    return [*zip(map(float, lows), map(float, edges[1:] if len(edges) > 1 else edges), strict=True)]


def by_size(data: Boxes, matched: Mapping[int, Entry]) -> dict[str, list[Entry]]:
    """Returns AP of the boxes by quarters of the sides of objects and of images: the roots of their areas, in pixels.
    `matched` is what `matches` returns.
    """
    areas = np.array([instance['area'] for instance in data.objects if not instance['iscrowd']])
    pixels = {image['id']: image['width'] * image['height'] for image in data.images}
    parts = dict(objects=quarters(areas) if len(areas) else [], images=quarters(np.array([*pixels.values()])))
    evaluation = data.evaluate(data.boxes, areas=parts['objects'])
    precision = precision_of(evaluation)[..., 1:, 0]  # IoU, recall, class, area
    sides = np.array([pixels[id] for id in matched])
    weights = np.array([(low <= sides) & (sides <= high) for low, high in parts['images']], int)
    values = dict(objects=[_mean_of(part[part > -1]) for part in np.moveaxis(precision, -1, 0)],
                  images=[_mean_of(ap) for ap in box_metrics([*matched.values()], 'bbox', weights)['AP']])
    return {name: [dict(low=low ** 0.5, high=high ** 0.5, AP=ap) for (low, high), ap in zip(
        parts[name], values[name], strict=True)] for name in parts}


def _mean_of(values: np.ndarray) -> float | None:
    """Returns the mean; None if there are no values, or if a value is NaN because there are no objects."""
    return float(np.mean(values)) if np.size(values) and not np.isnan(values).any() else None


def judge(data: Boxes, least: Sequence[float]) -> tuple[Entry, list[Entry]]:
    """Judges the boxes above the score threshold of their class, and the labels.

    Returns:
        `confusion`, how often an object of one class has a box of another, `(C + 1, C + 1)`, the last index being for
        no object or no box; objects that are `missed`, and boxes that are `wrong`. Then the boxes that contradict the
        labels, the surest first, with a `suspect`: 'class', 'place' or 'missing', and the object as their `label`.
    """
    boxes = [box for box in data.boxes if box['score'] > least[box['category_id'] - 1]]
    confusion = match(data.truth, data.truth.load_res(boxes), within_classes=False).table()
    # hotcoco's diagnostics count boxes on ignored objects as wrong, its matches do not.
    on_ignored = {number for box in filter(None, data.evaluate(boxes).eval_imgs)
                  for number, is_ignored in zip(box['dtIds'], box['dtIgnore'][0], strict=True) if is_ignored}
    boxes = [box for number, box in enumerate(boxes, start=1) if number not in on_ignored]
    evaluation = data.evaluate(boxes)
    told = evaluation.image_diagnostics(IOUS[0], 0)
    of_objects, of_boxes = (sorted(told[key].items()) for key in ('gt_status', 'dt_status'))  # theirs have no order
    objects = {instance['id']: instance for instance in data.objects}
    free = defaultdict[tuple[int, int], list[Entry]](list)
    for number, status in of_objects:
        if status == 'fn':
            free[objects[number]['image_id'], objects[number]['category_id']].append(objects[number])
    labels = {fault['dt_id']: (
        fault['type'].removesuffix('_annotation').removeprefix('wrong_').replace('label', 'class'),
        objects.get(fault['gt_id'])) for fault in told['label_errors']}
    for number, status in of_boxes:
        box = boxes[number - 1]
        near = free[box['image_id'], box['category_id']]
        if status == 'fp' and number not in labels and near:
            overlaps = np.array(iou([box['bbox']], [box['bbox'] for box in near], [0] * len(near)))[0]
            if overlaps.max() >= NEAR:
                labels[number] = 'place', near[int(overlaps.argmax())]
    judged = dict(confusion=confusion.tolist(),
                  missed=[objects[number] for number, status in of_objects if status == 'fn'],
                  wrong=[boxes[number - 1] for number, status in of_boxes if status == 'fp'])
    return judged, sorted((dict(boxes[number - 1], suspect=kind, label=label) for number, (kind, label)
                           in labels.items()), key=lambda box: (-box['score'], box['id']))


def summarize(data: Boxes) -> dict[str, Any]:
    """Returns the content of a detector's report. Everything except `metrics` is about boxes.

    `wrong` counts for each image the missed objects and the wrong boxes, at IoU 0.5, above the scores with the best F1.
    """
    evaluations = {kind: data.evaluate(data.boxes, kind) for kind in data.kinds}
    images, first = matches(data, evaluations), evaluations['bbox']
    lines = curves(data, first)
    judged, suspects = judge(data, [line['score'] for line in lines])
    for error in (*judged['missed'], *judged['wrong']):
        images[error['image_id']]['wrong'] += 1
    return dict(classes=[*data.classes], metrics=intervals([*images.values()], data.kinds), curves=lines,
                by_size=by_size(data, images), errors=first.tide_errors(), calibration=first.calibration(), **judged,
                suspects=suspects, images={image['file_name']: images[image['id']] for image in data.images})
