_base_ = './mask-rcnn_dinov2-s_sfp_1x_coco.py'
model = dict(
    backbone=dict(arch=dict(name='base'), init_cfg=dict(checkpoint='cpvt_mm://dinov2-base')),
    neck=dict(in_channels=768))
