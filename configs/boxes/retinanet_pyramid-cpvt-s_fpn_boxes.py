_base_ = [
    'mmdet::_base_/models/retinanet_r50_fpn.py',
    '../_base_/mmdet_runtime.py',
    '../_base_/datasets/boxes.py',
    '../_base_/schedules/gpu.py',
]
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.PyramidCPVT',
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pyramid-cpvt-small')),
    neck=dict(in_channels=[64, 128, 320, 512]),
    bbox_head=dict(num_classes=1))
default_hooks = dict(checkpoint=dict(interval=2000, save_best='coco/bbox_mAP'))
load_from = None  # a checkpoint of a whole detector to start from
