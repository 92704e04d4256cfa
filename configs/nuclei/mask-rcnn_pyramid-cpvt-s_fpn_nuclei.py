_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    '../_base_/mmdet_runtime.py',
    '../_base_/datasets/nuclei_instance.py',
    '../_base_/schedules/gpu.py',
]
num_classes = 1
model = dict(
    backbone=dict(_delete_=True, type='cpvt_mm.PyramidCPVT', arch='small', drop_path_rate=0.2),
    neck=dict(in_channels=[64, 128, 320, 512]),
    rpn_head=dict(anchor_generator=dict(scales=[2])),
    roi_head=dict(bbox_head=dict(num_classes=num_classes), mask_head=dict(num_classes=num_classes)),
    test_cfg=dict(rcnn=dict(max_per_img=500)))
train_dataloader = dict(batch_size=8)
auto_scale_lr = dict(base_batch_size=8)
default_hooks = dict(checkpoint=dict(interval=2000))
