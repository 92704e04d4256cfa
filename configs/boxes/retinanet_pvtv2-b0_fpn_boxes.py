_base_ = ['./retinanet_pyramid-cpvt-nano_fpn_boxes.py', '../_base_/models/pvtv2_b0.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.pvtv2_b0),
    neck=dict(in_channels=[32, 64, 160, 256]))
# The weights of the backbone are trained already: they learn slower than the rest, and do not decay.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone': dict(lr_mult=0.1, decay_mult=0.)}))
