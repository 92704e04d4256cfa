_base_ = './retinanet_pyramid-cpvt-nano_fpn_boxes.py'
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
# The weights of the backbone are trained already: they learn slower than the rest, and do not decay.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone': dict(lr_mult=0.1, decay_mult=0.)}))
