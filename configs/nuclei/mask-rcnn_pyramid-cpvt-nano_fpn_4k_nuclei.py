# Trains longer than its base, on images of many sizes. The MLPs have convolutions, which gained most in
# configs/_base_/studies/architecture_camvid.py. The neck has no GroupNorm, because its mean would include padding.
_base_ = './mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
max_iters = 4000
train_cfg = dict(max_iters=max_iters, val_interval=500)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, T_max=max_iters - 50, eta_min=1e-5),
]
default_hooks = dict(checkpoint=dict(interval=500, max_keep_ckpts=1, save_best='coco/bbox_mAP'))
model = dict(
    data_preprocessor=dict(type='cpvt_mm.DetDataPreprocessor'),
    backbone=dict(arch=dict(_delete_=True, name='nano', mlp_mode='conv'), padding='exact'),
    neck=dict(norm_cfg=None))
train_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='PhotoMetricDistortion'),
            dict(type='RandomChoice', transforms=[
                [dict(type='Resize', scale_factor=factor, keep_ratio=True)] for factor in (0.7, 0.85, 1., 1.2, 1.5)]),
            dict(type='RandomCrop', crop_size=(512, 512)),
            dict(type='RandomFlip', prob=0.75, direction=['horizontal', 'vertical', 'diagonal']),
            dict(type='openmmlab_tools.KeepVisibleObjects'),
            dict(type='PackDetInputs'),
        ]))
# Nuclei are small: at 1.5 times their size, box AP is 0.465 instead of 0.445.
test_pipeline = _base_.val_dataloader.dataset.pipeline
test_pipeline[1].update(scale_factor=1.5)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
