# The optimizer and 80k schedule of the original, for batches of 4 on 8 GPUs. Here, position encodings and norms have no
# weight decay.
_base_ = [
    '../_base_/models/semantic_fpn.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/mmseg_runtime.py',
]
model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pyramid-cpvt-small')))
max_iters = 80000
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=8000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='openmmlab_tools.MergedOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4, fused=True),
    paramwise_cfg=dict(custom_keys={
        'position_encoding': dict(decay_mult=0.),
        'norm': dict(decay_mult=0.)
    }))
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=1e-6, by_epoch=False, begin=0, end=max_iters)]
default_hooks = dict(checkpoint=dict(interval=8000))
auto_scale_lr = dict(enable=False, base_batch_size=32)
