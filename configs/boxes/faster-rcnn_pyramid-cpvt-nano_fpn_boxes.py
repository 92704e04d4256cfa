_base_ = [
    '../_base_/models/faster_rcnn_nano.py',
    '../_base_/mmdet_runtime.py',
    '../_base_/datasets/boxes.py',
    '../_base_/schedules/cpu.py',
]
model = dict(roi_head=dict(bbox_head=dict(num_classes=1)))
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP'))
load_from = None  # a checkpoint of a whole detector to start from
