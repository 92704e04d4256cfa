# The setting of the original, which is Swin's.
_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/mmseg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pyramid-cpvt-small')))
max_iters = 160000
train_dataloader = dict(batch_size=2)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='openmmlab_tools.MergedOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=6e-5, weight_decay=0.01, fused=True),
    paramwise_cfg=dict(custom_keys={
        'position_encoding': dict(decay_mult=0.),
        'norm': dict(decay_mult=0.)
    }))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=1500, end=max_iters),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
