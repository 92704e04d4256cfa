# Label maps of ADE20K. These settings are the authors' for DINOv2-L and ADE20K: 100 queries, 31 epochs of 16 images
# (here 40,000 iterations), a learning rate of 1e-4, a layer decay of 0.8, a weight decay of 0.05 for all parameters,
# and masked attention that ends block by block. These differ:
# - The queries join the last 3 of the 12 blocks, as in the authors' configs for small backbones.
# - Images are scaled as in mmseg, and unlabelled pixels do not count in the losses.
# - The authors' backbone learns after 500 iterations in which only the queries and heads warm up. Here, all parameters
#   warm up together.
# - The authors train in mixed precision: add --amp.
_base_ = [
    '../_base_/models/eomt_semantic.py',
    '../_base_/models/dinov3_s.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/ade20k_512x512.py',
]
max_iters = 40000
dinov3 = _base_.dinov3
dinov3.type = 'cpvt_mm.PlainMaskTransformer'
dinov3.init_cfg.allow_missing = 'decoder'
model = dict(
    data_preprocessor=dict(size=(512, 512), size_divisor=None),
    backbone=dict(_delete_=True, num_query_blocks=3, padding='exact', **dinov3),
    decode_head=dict(in_channels=384, num_classes=150))
train_dataloader = dict(batch_size=2)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=8000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='cpvt_mm.LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05, fused=True),
    paramwise_cfg=dict(layer_decay_rate=0.8),
    clip_grad=dict(max_norm=0.01))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=1500, end=max_iters),
]
default_hooks = dict(checkpoint=dict(interval=8000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
