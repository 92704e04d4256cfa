# EoMT (arXiv 2503.19108) in mmdet's Mask2Former, for instances. Configs set the number of classes. With exact padding,
# an image has the same result in any batch.
_base_ = './mask_matching.py'
model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='cpvt_mm.DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
        pad_mask=True),
    backbone=dict(
        type='cpvt_mm.PlainMaskTransformer',
        arch=dict(name='tiny'),
        cls_token=False,
        num_query_blocks=3,
        padding='exact'),
    panoptic_head=dict(type='cpvt_mm.PlainMaskHead', in_channels=192, num_stuff_classes=0),
    panoptic_fusion_head=dict(type='MaskFormerFusionHead', num_stuff_classes=0),
    train_cfg=_base_.matching,
    test_cfg=dict(panoptic_on=False, instance_on=True, max_per_image=100))
custom_hooks = [dict(type='cpvt_mm.MaskAnnealingHook')]
