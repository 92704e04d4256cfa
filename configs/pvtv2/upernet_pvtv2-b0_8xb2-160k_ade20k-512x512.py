# The setting of Swin.
_base_ = '../pyramid_cpvt/upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.PyramidCPVT',
        arch='pvtv2-b0',
        patch_mode='overlap',
        mlp_mode='conv',
        stage_norm=True,
        position_encoding=None,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pvtv2-b0')),
    decode_head=dict(in_channels=[32, 64, 160, 256]),
    auxiliary_head=dict(in_channels=160))
