"""One rule for boxes of equal scores in what hotcoco matches and counts: their order in a file has no effect.

COCO's metric takes boxes in the order of their scores, and boxes of equal scores in the order of the file. Here, they
are matched in the order of their places, and they count together; see `average_precision`.
"""
import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from hotcoco import COCOeval

from .average_precision import curves


def by_score(boxes: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Returns boxes in COCO's layout, the largest scores first, and boxes of equal scores by image, class and place."""
    def key(box: Mapping[str, Any]) -> tuple[Any, ...]:
        encoded = box.get('segmentation')
        return (-box['score'], str(box['image_id']), box['category_id'], [*box['bbox']],
                encoded['counts'] if isinstance(encoded, dict) else str(encoded))

    return sorted(boxes, key=key)


def precision_of(evaluation: COCOeval) -> np.ndarray:
    """Returns hotcoco's precision, `(T, 101, C, A, M)`: by IoU threshold, recall, class, range of areas, and box limit.

    It is -1 where there are no objects. If boxes of a class have equal scores, the precision does not depend on their
    order.
    """
    assert evaluation.eval
    precision = np.array(evaluation.eval['precision'])
    scores: dict[int, list[float]] = {}
    for annotation in evaluation.coco_dt.anns.values():
        scores.setdefault(annotation['category_id'], []).append(annotation['score'])
    for index, category in enumerate(evaluation.params.cat_ids):
        if len({*scores.get(category, ())}) < len(scores.get(category, ())):
            for area, span in enumerate(evaluation.params.area_rng):
                if (precision[:, :, index, area] > -1).any():
                    precision[:, :, index, area] = _precision(evaluation, category, span)
    return precision


def _precision(evaluation: COCOeval, category: int, span: Sequence[float]) -> np.ndarray:
    """Returns the precision `(T, 101, M)` for one class and one range of areas."""
    given = evaluation.params
    again = COCOeval(evaluation.coco_gt, evaluation.coco_dt, given.iou_type)
    params = again.params
    params.iou_thrs, params.max_dets, params.img_ids = given.iou_thrs, given.max_dets, given.img_ids
    params.cat_ids, params.area_rng, params.area_rng_lbl = [category], [[*span]], ['']
    again.evaluate()
    with _without_collector():
        images = [result for result in again.eval_imgs if result]
    objects = sum(not is_ignored for image in images for is_ignored in image['gtIgnore'])
    return np.stack([_lines(images, limit, objects) for limit in given.max_dets], axis=-1)


def _lines(images: Sequence[Mapping[str, Any]], limit: int, objects: int) -> np.ndarray:
    scores = np.array([score for image in images for score in image['dtScores'][:limit]], float)
    order = np.argsort(-scores, kind='stable')
    is_matched, is_ignored = (np.concatenate([np.array(image[key], bool).reshape(len(image[key]), -1)[:, :limit]
                                              for image in images], axis=1)[:, order]
                              for key in ('dtMatched', 'dtIgnore'))
    ones = np.ones((len(scores), 1), np.int32)
    curves_of_class = curves(scores[order], [*zip(is_matched & ~is_ignored, is_ignored, strict=True)], ones,
                             np.array([objects]))
    return np.stack([curve.line for curve in curves_of_class])


@contextmanager
def _without_collector() -> Iterator[None]:
    """Pauses the garbage collector, which would look through millions of new lists several times."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
