# The 1x setting of the original, which is PVT's. Here, position encodings and norms have no weight decay.
_base_ = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.PyramidCPVT',
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pyramid-cpvt-small')),
    neck=dict(in_channels=[64, 128, 320, 512]))
optim_wrapper = dict(
    constructor='openmmlab_tools.MergedOptimWrapperConstructor',
    optimizer=dict(_delete_=True, type='AdamW', lr=1e-4, weight_decay=1e-4, fused=True),
    paramwise_cfg=dict(custom_keys={
        'position_encoding': dict(decay_mult=0.),
        'norm': dict(decay_mult=0.)
    }))
default_hooks = dict(non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
