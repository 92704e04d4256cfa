_base_ = './linear_dinov2-s_frozen_8xb2-40k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch=dict(name='base'), init_cfg=dict(checkpoint='cpvt_mm://dinov2-base')),
    decode_head=dict(in_channels=768, channels=768))
