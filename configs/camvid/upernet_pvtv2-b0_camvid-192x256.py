_base_ = './upernet_pyramid-cpvt-nano_camvid-192x256.py'
model = dict(
    backbone=dict(_delete_=True, type='mmdet.PyramidVisionTransformerV2', embed_dims=32, num_layers=[2, 2, 2, 2],
                  drop_path_rate=0.),
    decode_head=dict(in_channels=[32, 64, 160, 256]),
    auxiliary_head=dict(in_channels=160))
# This backbone has no position encoding.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(_delete_=True)))
