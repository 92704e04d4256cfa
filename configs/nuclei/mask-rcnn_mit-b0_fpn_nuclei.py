_base_ = './mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
model = dict(
    backbone=dict(_delete_=True, type='mmseg.MixVisionTransformer', embed_dims=32, num_layers=[2, 2, 2, 2],
                  num_heads=[1, 2, 5, 8]),
    neck=dict(in_channels=[32, 64, 160, 256]))
# This backbone has no position encoding.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(_delete_=True)))
