# The convolutions in the MLPs learn faster from random weights: 450 iterations on smaller images instead of 800.
_base_ = './mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes.py'
max_iters = 450
scale = (128, 128)
train_pipeline, test_pipeline = _base_.train_dataloader.dataset.pipeline, _base_.val_dataloader.dataset.pipeline
train_pipeline[2].scale = test_pipeline[1].scale = scale

model = dict(backbone=dict(arch=dict(_delete_=True, name='nano', mlp_mode='conv')))
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, T_max=max_iters - 50, eta_min=1e-5),
]
