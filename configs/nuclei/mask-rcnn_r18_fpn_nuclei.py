_base_ = './mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
model = dict(
    backbone=dict(_delete_=True, type='ResNet', depth=18, norm_eval=False),
    neck=dict(in_channels=[64, 128, 256, 512]))
# This backbone has no position encoding.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(_delete_=True)))
