# From random weights: none are released for nano.
_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/toy_shapes_semantic.py',
    '../_base_/schedules/toy.py',
]
norm_cfg = dict(type='GN', num_groups=8)
num_classes = 6

model = dict(
    data_preprocessor=dict(size_divisor=32),
    backbone=dict(arch='nano', drop_path_rate=0.),
    decode_head=dict(in_channels=[32, 64, 128, 192], channels=64, num_classes=num_classes, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=128, channels=64, num_classes=num_classes, norm_cfg=norm_cfg))
default_hooks = dict(checkpoint=dict(interval=200, max_keep_ckpts=2))
