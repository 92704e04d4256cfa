"""Sentences on what the number of a metric hides: limits of boxes, thresholds of scores, and missing labels."""
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hotcoco import COCO

from openmmlab_tools.config_walk import walk
from openmmlab_tools.texts import counted

from .confusion import Confusion


def what_is_hidden(confusion: Confusion, test_cfg: Any) -> list[str]:
    """Returns the sentences on a validation or test; none on a fault that it does not have. `test_cfg` is the model's.
    """
    return [*_of_boxes(confusion, test_cfg), *_of_pixels(confusion)]


def _of_boxes(confusion: Confusion, test_cfg: Any) -> Iterator[str]:
    for metric in confusion.metrics if confusion.boxes else ():
        if getattr(metric, 'compared', None):
            limit = 100 if 100 in metric.proposal_nums else metric.proposal_nums[-1]
            objects, boxes = (_crowded(coco, limit) for coco in metric.compared)
            if objects or boxes:
                yield (f'mAP counts only the best {limit} boxes of each class in an image, but there are up to '
                       f'{max(objects + boxes)} ({counted(len(objects), "image")} with more objects, '
                       f'{counted(len(boxes), "image")} with more boxes). To count all, set type and proposal_nums of '
                       f"the metric to 'openmmlab_tools.CocoMetric' and (1, 10, {max(objects + boxes)}).")
            if metric.untested:
                yield (f'The annotation file lists {metric.untested} more images. They were not tested and do '
                       'not count.')
            empty = metric.compared[0].imgs.keys() - {annotation['image_id']
                                                      for annotation in metric.compared[0].anns.values()}
            if empty:
                yield (f'{len(empty)} of {len(metric.compared[0].imgs)} images have no annotation, so each box there '
                       'counts as wrong.')
    for path, part in walk(test_cfg) if confusion.boxes else ():
        if (score := part.get('score_thr') or 0) > 0:
            name = '.'.join(map(str, ('model.test_cfg', *path, 'score_thr')))
            yield (f'The model drops boxes with a score of at most {score} ({name}), so the metric does not count '
                   'them. This lowers mAP.')


def _crowded(coco: COCO, limit: int) -> list[int]:
    """Returns the numbers of boxes of each image and class that has more than a limit."""
    counts = Counter((annotation['image_id'], annotation['category_id']) for annotation in coco.anns.values()
                     if not annotation['iscrowd'])
    return [count for count in counts.values() if count > limit]


def _of_pixels(confusion: Confusion) -> Iterator[str]:
    counts: Any = [count.to_dense() for count in confusion.counts.values()]
    outside = [int(count[-1].sum()) for count in counts]
    if any(outside):
        yield (f'{sum(outside)} pixels in {sum(map(bool, outside))} label maps have labels without a class. They count '
               f'as wrong. To ignore a label, set ignore_index of the metric (now {confusion.ignored}).')
    if empty := sum(not count.any() for count in counts):
        yield f'{empty} of {len(counts)} label maps have ignored labels only, so predictions there do not count.'
