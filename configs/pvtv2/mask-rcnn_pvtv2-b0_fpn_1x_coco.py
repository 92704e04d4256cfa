# The 1x setting of PVT v2. Here, norms have no weight decay.
_base_ = ['../pyramid_cpvt/mask-rcnn_pyramid-cpvt-s_fpn_1x_coco.py', '../_base_/models/pvtv2_b0.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.pvtv2_b0),
    neck=dict(in_channels=[32, 64, 160, 256]))
