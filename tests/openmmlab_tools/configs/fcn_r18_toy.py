# FCN of mmseg with a ResNet of 8 to 64 channels. `write_toy` of toy.py beside this folder writes the data.
_base_ = './runtime.py'
default_scope = 'mmseg'
data_root = 'data/toy/'
metainfo = dict(
    classes=('background', 'sun', 'ball', 'kite', 'boat', 'square'),
    palette=[(0, 0, 0), (230, 60, 60), (60, 180, 75), (65, 105, 225), (250, 190, 40), (160, 60, 200)])
scale = (160, 160)
norm_cfg = dict(type='GN', num_groups=4)
loss = dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.)
head = dict(
    type='FCNHead', num_convs=1, concat_input=False, dropout_ratio=0.1, num_classes=6, norm_cfg=norm_cfg,
    align_corners=False)

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size_divisor=32,
        test_cfg=dict(size_divisor=32)),
    pretrained=None,
    backbone=dict(type='ResNet', depth=18, base_channels=8, stem_channels=8, norm_cfg=norm_cfg),
    decode_head=dict(head, in_channels=64, in_index=3, channels=32, loss_decode=loss),
    auxiliary_head=dict(head, in_channels=32, in_index=2, channels=16, loss_decode=dict(loss, loss_weight=0.4)),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))

train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='Resize', scale=scale, keep_ratio=True),
            dict(type='RandomFlip', prob=0.5),
            dict(type='PackSegInputs'),
        ]))
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=scale, keep_ratio=True),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ]))
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
default_hooks = dict(visualization=dict(type='SegVisualizationHook'))
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')], name='visualizer')
