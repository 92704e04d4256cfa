# From random weights: none are released for nano.
_base_ = [
    'mmdet::_base_/models/mask-rcnn_r50_fpn.py',
    'mmdet::_base_/default_runtime.py',
    '../_base_/datasets/toy_shapes_instance.py',
    '../_base_/schedules/toy.py',
]
channels = 64
norm_cfg = dict(type='GN', num_groups=8)
strides = [4, 8, 16, 32]
num_classes = 5

model = dict(
    backbone=dict(_delete_=True, type='cpvt_mm.PyramidCPVT', arch='nano'),
    neck=dict(in_channels=[32, 64, 128, 192], out_channels=channels, num_outs=4, norm_cfg=norm_cfg),
    rpn_head=dict(
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(scales=[6], strides=strides)),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels),
        bbox_head=dict(in_channels=channels, fc_out_channels=256, num_classes=num_classes),
        mask_roi_extractor=dict(out_channels=channels),
        mask_head=dict(num_convs=2, in_channels=channels, conv_out_channels=channels, num_classes=num_classes,
                       norm_cfg=norm_cfg)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100)))
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=200, max_keep_ckpts=2),
    non_finite_loss=dict(type='cpvt_mm.StopOnNonFiniteLoss'))
log_processor = dict(by_epoch=False)
