# python -m lab convert nuclei writes the data. Images keep their sizes, 256 x 256 pixels and up. Training crops large
# images.
data_root = 'data/nuclei/'
metainfo = dict(classes=('nucleus',), palette=[(220, 20, 60)])

train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        metainfo=metainfo,
        ann_file='instances_train.json',
        data_prefix=dict(img='train/'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='RandomCrop', crop_size=(320, 320)),
            dict(type='RandomFlip', prob=0.75, direction=['horizontal', 'vertical', 'diagonal']),
            dict(type='openmmlab_tools.KeepVisibleObjects'),
            dict(type='PackDetInputs'),
        ]))
val_dataloader = dict(
    batch_size=1,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        metainfo=metainfo,
        ann_file='instances_val.json',
        data_prefix=dict(img='val/'),
        test_mode=True,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale_factor=1., keep_ratio=True),
            dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
            dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
        ]))
test_dataloader = val_dataloader

val_evaluator = dict(type='CocoMetric', ann_file=data_root + 'instances_val.json', metric=['bbox', 'segm'])
test_evaluator = val_evaluator
auto_scale_lr = dict(enable=False, base_batch_size=4)
