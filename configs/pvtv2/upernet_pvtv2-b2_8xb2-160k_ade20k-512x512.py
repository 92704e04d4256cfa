_base_ = './upernet_pvtv2-b0_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch='pvtv2-b2', init_cfg=dict(checkpoint='cpvt_mm://pvtv2-b2')),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320))
