# The 3x setting of the original, which has Swin's pipeline, optimizer and mixed precision, and a warm-up of 500
# iterations. Here, the loss scale is dynamic, and objects that a crop hides are dropped.
_base_ = 'mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_amp-ms-crop-3x_coco.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.PyramidCPVT',
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pyramid-cpvt-small')),
    neck=dict(in_channels=[64, 128, 320, 512]))
train_pipeline = _base_.train_pipeline
train_pipeline.insert(-1, dict(type='openmmlab_tools.KeepVisibleObjects', allow_negative=True))
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
optim_wrapper = dict(
    constructor='openmmlab_tools.MergedOptimWrapperConstructor',
    optimizer=dict(fused=True),
    paramwise_cfg=dict(
        _delete_=True,
        custom_keys={
            'position_encoding': dict(decay_mult=0.),
            'norm': dict(decay_mult=0.)
        }))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=36, by_epoch=True, milestones=[27, 33], gamma=0.1),
]
default_hooks = dict(non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
