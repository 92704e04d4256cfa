# The 12 epochs of DINO in mmdet.
_base_ = 'mmdet::dino/dino-4scale_r50_8xb2-12e_coco.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.PyramidCPVT',
        arch='pvtv2-b2',
        position_encoding=None,
        out_indices=(1, 2, 3),
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pvtv2-b2')),
    neck=dict(in_channels=[128, 320, 512]))
optim_wrapper = dict(constructor='openmmlab_tools.MergedOptimWrapperConstructor', optimizer=dict(fused=True))
default_hooks = dict(non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
