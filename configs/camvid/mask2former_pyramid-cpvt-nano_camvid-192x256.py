# Mask2Former, narrow, with exact padding: an image has the same result in any batch.
_base_ = [
    '../_base_/models/upernet_nano.py',
    '../_base_/models/mask2former.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/camvid_192x256.py',
    '../_base_/schedules/queries.py',
]
num_classes = 11
head = _base_.mask2former_head
head.update(in_channels=[32, 64, 128, 192], num_classes=num_classes, num_queries=30)
head.pixel_decoder.encoder.num_layers = 1
head.transformer_decoder.num_layers = 3
head.loss_cls.class_weight = [1.] * num_classes + [0.1]
head.train_cfg.num_points = 2048
model = dict(
    data_preprocessor=dict(type='cpvt_mm.SegDataPreProcessor', test_cfg=dict(size_divisor=32)),
    backbone=dict(padding='exact'),
    decode_head=dict(_delete_=True, **head),
    auxiliary_head=None)
default_hooks = dict(
    batch=dict(type='cpvt_mm.BatchInvariantHook'), checkpoint=dict(interval=500, max_keep_ckpts=2))
