"""Matches predictions and truth: boxes and objects in COCO's layout, as its metric does, and pixels by class."""
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from hotcoco import COCO, COCOeval, mask
from hotcoco.metrics import pixel_confusion

from openmmlab_tools.data.coco import Coco, Entry

# Boxes with a lower score do not count in tables of classes, and boxes that overlap less do not match.
SCORE, IOU = 0.3, 0.5


class Matches(NamedTuple):
    """Matched boxes and objects. Crowds, and boxes on crowds, are left out: N boxes and M objects remain.

    Attributes:
        predicted: The labels of the boxes, `(N,)`.
        true: The labels of the objects that they match, `(N,)`; the number of classes for boxes without an object.
        scores: The scores of the boxes, `(N,)`, float64.
        objects: The number of objects in each class, `(num_classes,)`.
    """
    predicted: np.ndarray
    true: np.ndarray
    scores: np.ndarray
    objects: np.ndarray

    @property
    def is_hit(self) -> np.ndarray:
        return self.predicted == self.true

    def table(self, least: float = 0) -> np.ndarray:
        """Counts the pairs of classes of boxes with a score from `least`, and of objects, `(n + 1, n + 1)`; without a
        partner, the class is n.
        """
        none, is_sure = len(self.objects), self.scores >= least
        counts = np.zeros((none + 1, none + 1), int)
        np.add.at(counts, (self.true[is_sure], self.predicted[is_sure]), 1)
        counts[:none, none] = self.objects - counts[:none].sum(1)
        return counts


def arrays_of(instances: Any) -> dict[str, Any]:
    """Returns the parts of `pred_instances` as arrays, and masks as run-length encodings."""
    arrays = {key: value.numpy(force=True) if isinstance(value, torch.Tensor) else value
             for key, value in instances.items()}
    if isinstance(masks := arrays.get('masks'), np.ndarray):
        arrays['masks'] = mask.encode(np.asfortranarray(masks.transpose(1, 2, 0), np.uint8))
    return arrays


def predictions(results: Sequence[Mapping[str, Any]], kind: str) -> list[Entry]:
    """Returns predictions in COCO's layout, 'bbox' or 'segm', but with the label as `category_id`."""
    entries = []
    for result in results:
        boxes = result['bboxes'].astype(float)
        boxes[:, 2:] -= boxes[:, :2]
        scores = result.get('mask_scores', result['scores']) if kind == 'segm' else result['scores']
        for index, row in enumerate(zip(boxes.tolist(), scores.tolist(), result['labels'].tolist(), strict=True)):
            entries.append(dict(image_id=result['img_id'],
                                **dict(zip(('bbox', 'score', 'category_id'), row, strict=True))))
            if kind == 'segm':
                entries[-1]['segmentation'] = _as_text(result['masks'][index])
    return entries


def _as_text(encoded: Any) -> Any:
    """Returns a run-length encoding for JSON."""
    counts = encoded.get('counts') if isinstance(encoded, dict) else None
    return dict(encoded, counts=counts.decode()) if isinstance(counts, bytes) else encoded


def of_samples(results: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> Coco:
    """Returns the annotations of data samples in COCO's layout; categories have the numbers of labels as ids."""
    coco = Coco(dict(images=[], annotations=[], categories=[dict(id=label, name=name)
                                                            for label, name in enumerate(classes)]))
    for result in results:
        height, width = result['ori_shape'][:2]
        coco['images'].append(dict(id=result['img_id'], file_name='', height=height, width=width))
        for instance in result['instances']:
            left, top, right, bottom = map(float, instance['bbox'])
            box = [left, top, right - left, bottom - top]
            coco['annotations'].append(dict(
                id=len(coco['annotations']) + 1, image_id=result['img_id'], category_id=int(instance['bbox_label']),
                bbox=box, area=box[2] * box[3], iscrowd=int(instance.get('ignore_flag', 0)),
                **(dict(segmentation=_as_text(instance['mask'])) if instance.get('mask') else {})))
    return coco


def evaluate(true: COCO, predicted: COCO, kind: str = 'bbox', ious: Sequence[float] = (IOU,),
             areas: Sequence[Sequence[float]] = (), within_classes: bool = True) -> COCOeval:
    """Matches boxes to objects, whose categories are labels + 1, in the order of their scores, each to the free object
    that it overlaps most. No box is cut. `areas` are the least and the most pixels of objects that are then matched
    alone; `within_classes`, only a box and an object of one class match.
    """
    evaluation = COCOeval(true, predicted, kind)
    params = evaluation.params
    params.iou_thrs, params.max_dets, params.use_cats = [*ious], [len(predicted.anns) + 1], within_classes
    params.area_rng = [[0, 1e10], *map(list, areas)]
    params.area_rng_lbl = ['all', *map(str, range(len(areas)))]
    evaluation.evaluate()
    return evaluation


def match(true: COCO, predictions: COCO, within_classes: bool) -> Matches:
    """Returns the matches at `IOU`; see `evaluate`."""
    none, rows, objects = len(true.cats), [], np.zeros(len(true.cats) + 1, int)
    labels, boxes = ({id: entry['category_id'] - 1 for id, entry in side.anns.items()} for side in (true, predictions))
    for entry in filter(None, evaluate(true, predictions, within_classes=within_classes).eval_imgs):
        np.add.at(objects, [labels[id] for id, is_out in zip(entry['gtIds'], entry['gtIgnore'], strict=True)
                            if not is_out], 1)
        rows += [(boxes[box], labels.get(id, none), score) for box, id, score, is_out in zip(
            entry['dtIds'], entry['dtMatches'][0], entry['dtScores'], entry['dtIgnore'][0], strict=True) if not is_out]
    predicted, partners, scores = np.array(rows, float).reshape(-1, 3).T
    return Matches(predicted.astype(int), partners.astype(int), scores, objects[:none])


def label_map_of(part: Any) -> np.ndarray:
    """Returns the label map of a part of a sample, `(H, W)`, int64; mmseg's binary segmentors predict floats."""
    return part.data[0].numpy(force=True).astype(np.int64)


def match_pixels(true: np.ndarray, predicted: np.ndarray, classes: int, ignored: int) -> np.ndarray:
    """Counts the pairs of classes of pixels, `(n + 1, n + 1)`, in label maps, int64, as mmseg's IoUMetric does, without
    pixels whose true label is `ignored`. Labels of other classes than the n have the index n.
    """
    first, second = (np.where((label_map >= 0) & (label_map < classes), label_map, classes)
                     for label_map in (true, predicted))
    first[true == ignored] = classes + 1
    counts = pixel_confusion(first, second, classes + 2, ignore_index=classes + 1)
    return counts[:classes + 1, :classes + 1].astype(int)
