# UperNet, narrow enough to train on a CPU. The toy's and CamVid's configs set `num_classes`.
_base_ = './upernet.py'
norm_cfg = dict(type='GN', num_groups=8)

model = dict(
    data_preprocessor=dict(size_divisor=32),
    backbone=dict(arch='nano', drop_path_rate=0.),
    decode_head=dict(in_channels=[32, 64, 128, 192], channels=64, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=128, channels=64, norm_cfg=norm_cfg))
