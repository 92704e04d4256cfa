_base_ = './upernet_pyramid-cpvt-nano_camvid-192x256.py'
model = dict(
    backbone=dict(_delete_=True, type='ResNet', depth=18, norm_eval=False),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256))
# This backbone has no position encoding.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(_delete_=True)))
