# Mask2Former, narrow, with exact padding: an image has the same result in any batch.
_base_ = [
    '../_base_/models/mask2former.py',
    '../_base_/mmdet_runtime.py',
    '../_base_/datasets/nuclei_instance.py',
    '../_base_/schedules/queries.py',
]
head = _base_.mask2former_head
head.pop('num_classes')
head.update(in_channels=[32, 64, 128, 192], num_things_classes=1, num_stuff_classes=0, num_queries=150)
head.pixel_decoder.encoder.num_layers = 1
head.transformer_decoder.num_layers = 3
head.loss_cls.class_weight = [1., 0.1]
points = dict(head.pop('train_cfg'), num_points=2048)
model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='cpvt_mm.DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_mask=True,
        pad_size_divisor=32),
    backbone=dict(type='cpvt_mm.PyramidCPVT', arch='nano', padding='exact'),
    panoptic_head=head,
    panoptic_fusion_head=dict(type='MaskFormerFusionHead', num_things_classes=1, num_stuff_classes=0),
    train_cfg=points,
    test_cfg=dict(panoptic_on=False, semantic_on=False, instance_on=True, max_per_image=150))
default_hooks = dict(batch=dict(type='cpvt_mm.BatchInvariantHook'))
