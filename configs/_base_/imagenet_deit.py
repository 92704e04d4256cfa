# The recipe of DeiT (arXiv 2012.12877, table 9), for batches of 1024. mmpretrain's files set its augmentations, AdamW,
# weight decay and 300 epochs. This file adds mixing, repeated augmentation and a warm-up of 5 epochs.
_base_ = [
    'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py',
    'mmpretrain::_base_/schedules/imagenet_bs1024_adamw_swin.py',
    'mmpretrain::_base_/default_runtime.py',
]
model = dict(
    type='ImageClassifier',
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02)),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
train_dataloader = dict(sampler=dict(_delete_=True, type='RepeatAugSampler', num_repeats=3))
# These have no weight decay. mmpretrain's file also excludes norms, biases and other one-dimensional parameters.
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='openmmlab_tools.MergedOptimWrapperConstructor',
    optimizer=dict(fused=True),
    paramwise_cfg=dict(custom_keys=dict(_delete_=True, position_encoding=dict(decay_mult=0.))))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5, end=300),
]
default_hooks = dict(non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
