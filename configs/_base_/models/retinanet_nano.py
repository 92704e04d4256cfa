# RetinaNet, narrow enough to train on a CPU. The configs for boxes set `num_classes`.
_base_ = 'mmdet::_base_/models/retinanet_r50_fpn.py'
channels = 64
norm_cfg = dict(type='GN', num_groups=8)

model = dict(
    backbone=dict(_delete_=True, type='cpvt_mm.PyramidCPVT', arch='nano'),
    neck=dict(in_channels=[32, 64, 128, 192], out_channels=channels, norm_cfg=norm_cfg),
    bbox_head=dict(in_channels=channels, feat_channels=channels, stacked_convs=2, norm_cfg=norm_cfg))
