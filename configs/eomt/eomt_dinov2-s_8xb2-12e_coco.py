# Instances of COCO. These settings are the authors' for DINOv2-S and panoptic COCO: 200 queries, 12 epochs of 16
# images, large-scale jitter, a learning rate of 1e-4, a layer decay of 0.8, a weight decay of 0.05 for all parameters,
# and masked attention that ends block by block. These differ:
# - Images have 644 pixels, a multiple of 14. The authors resample the patches to 16 pixels, and train on 640.
# - The authors' backbone learns after 500 iterations in which only the queries and heads warm up. Here, all parameters
#   warm up together.
# - The authors train in mixed precision: add --amp.
_base_ = ['mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', '../_base_/models/dinov2_s.py']
image_size = (644, 644)
max_iters = 88700
dinov2 = _base_.dinov2
dinov2.type = 'cpvt_mm.PlainMaskTransformer'
dinov2.init_cfg.allow_missing = 'decoder'
batch_augments = _base_.batch_augments
batch_augments[0].update(size=image_size)
model = dict(
    data_preprocessor=dict(type='cpvt_mm.DetDataPreprocessor', pad_size_divisor=14, batch_augments=batch_augments),
    backbone=dict(_delete_=True, num_queries=200, num_query_blocks=3, padding='exact', **dinov2),
    panoptic_head=dict(_delete_=True, type='cpvt_mm.PlainMaskHead', in_channels=384, num_stuff_classes=0))
train_pipeline = _base_.train_pipeline
train_pipeline[3].update(scale=image_size)
train_pipeline[4].update(crop_size=image_size)
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=image_size)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
train_cfg = dict(max_iters=max_iters, dynamic_intervals=None)
optim_wrapper = dict(
    constructor='cpvt_mm.LayerDecayOptimWrapperConstructor',
    optimizer=dict(fused=True),
    paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.8))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=1500, end=max_iters),
]
default_hooks = dict(non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
custom_hooks = [dict(type='cpvt_mm.MaskAnnealingHook')]
