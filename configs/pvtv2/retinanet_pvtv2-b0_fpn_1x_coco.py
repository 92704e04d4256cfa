# The 1x setting of PVT v2. Here, norms have no weight decay.
_base_ = '../pyramid_cpvt/retinanet_pyramid-cpvt-s_fpn_1x_coco.py'
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
    neck=dict(in_channels=[32, 64, 160, 256]))
