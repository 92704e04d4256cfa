# From random weights: none are released for nano.
_base_ = [
    '../_base_/models/mask_rcnn_nano.py',
    '../_base_/mmdet_runtime.py',
    '../_base_/datasets/toy_shapes_instance.py',
    '../_base_/schedules/toy.py',
]
num_classes = 5
model = dict(roi_head=dict(bbox_head=dict(num_classes=num_classes), mask_head=dict(num_classes=num_classes)))
