# Mask R-CNN, narrow enough to train on a CPU. The toy's and nuclei's configs set `num_classes`.
_base_ = 'mmdet::_base_/models/mask-rcnn_r50_fpn.py'
channels = 64
norm_cfg = dict(type='GN', num_groups=8)
strides = [4, 8, 16, 32]

model = dict(
    backbone=dict(_delete_=True, type='cpvt_mm.PyramidCPVT', arch='nano'),
    neck=dict(in_channels=[32, 64, 128, 192], out_channels=channels, num_outs=4, norm_cfg=norm_cfg),
    rpn_head=dict(
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(scales=[6], strides=strides)),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels),
        bbox_head=dict(in_channels=channels, fc_out_channels=256),
        mask_roi_extractor=dict(out_channels=channels),
        mask_head=dict(num_convs=2, in_channels=channels, conv_out_channels=channels, norm_cfg=norm_cfg)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100)))
