_base_ = './upernet_dinov2-s_sfp_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch=dict(name='base'), init_cfg=dict(checkpoint='cpvt_mm://dinov2-base')),
    neck=dict(in_channels=768))
