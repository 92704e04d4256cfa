"""The tasks that new configs are for, with all that differs between them."""
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    metric: str  # that counts, as mmengine's CheckpointHook calls it
    least_gain: float  # of the metric, for an improvement
    limits: tuple[int, int]  # the longest side of images in training, in pixels: on a GPU, and on a CPU
    load: dict[str, Any]  # the transform that loads annotations
    pack: str  # the transform that packs a sample
    evaluator: dict[str, Any]


COCO_METRIC = dict(type='CocoMetric', classwise=True)
TASKS = dict(
    boxes=Task('coco/bbox_mAP', 0.001, (1333, 480), dict(type='LoadAnnotations', with_bbox=True), 'PackDetInputs',
               dict(COCO_METRIC, metric='bbox')),
    instances=Task('coco/segm_mAP', 0.001, (1333, 480), dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
                   'PackDetInputs', dict(COCO_METRIC, metric=['bbox', 'segm'])),
    semantic=Task('mIoU', 0.1, (1024, 320), dict(type='LoadAnnotations'), 'PackSegInputs',  # a metric in percent
                  dict(type='IoUMetric', iou_metrics=['mIoU'])))
FOR_CPU = ('nano', 'pvtv2-b0')  # archs whose configs have narrow necks and heads
ITERS = (8000, 400)  # of training; for others, and for those of `FOR_CPU`
BATCH = (8, 4)
WARM_UP = 2, 500  # iterations at least, as with one the rate would never leave its start, and at most
VALIDATIONS = (4, 20)  # at most; without early stopping, and with it
