# Mask R-CNN of mmdet with a ResNet of 8 to 64 channels. `write_toy` of toy.py beside this folder writes the data.
_base_ = ['mmdet::_base_/models/mask-rcnn_r50_fpn.py', './runtime.py']
default_scope = 'mmdet'
data_root = 'data/toy/'
metainfo = dict(
    classes=('sun', 'ball', 'kite', 'boat', 'square'),
    palette=[(230, 60, 60), (60, 180, 75), (65, 105, 225), (250, 190, 40), (160, 60, 200)])
scale = (160, 160)
channels = 32
norm_cfg = dict(type='GN', num_groups=4)

model = dict(
    backbone=dict(_delete_=True, type='ResNet', depth=18, base_channels=8, stem_channels=8, norm_cfg=norm_cfg),
    neck=dict(in_channels=[8, 16, 32, 64], out_channels=channels, num_outs=4, norm_cfg=norm_cfg),
    rpn_head=dict(
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(scales=[6], strides=[4, 8, 16, 32])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels),
        bbox_head=dict(in_channels=channels, fc_out_channels=64, num_classes=5),
        mask_roi_extractor=dict(out_channels=channels),
        mask_head=dict(num_convs=2, in_channels=channels, conv_out_channels=channels, num_classes=5,
                       norm_cfg=norm_cfg)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=64))),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100)))

train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        metainfo=metainfo,
        ann_file='instances_training.json',
        data_prefix=dict(img='images/training/'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='Resize', scale=scale, keep_ratio=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='openmmlab_tools.KeepVisibleObjects'),
            dict(type='PackDetInputs'),
        ]))
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        metainfo=metainfo,
        ann_file='instances_validation.json',
        data_prefix=dict(img='images/validation/'),
        test_mode=True,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=scale, keep_ratio=True),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
        ]))
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric', ann_file=data_root + 'instances_validation.json', metric=['bbox', 'segm'])
test_evaluator = val_evaluator
default_hooks = dict(visualization=dict(type='DetVisualizationHook'))
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
