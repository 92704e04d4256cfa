_base_ = './mask-rcnn_pvtv2-b0_fpn_1x_coco.py'
model = dict(
    backbone=dict(arch='pvtv2-b2', init_cfg=dict(checkpoint='cpvt_mm://pvtv2-b2')),
    neck=dict(in_channels=[64, 128, 320, 512]))
