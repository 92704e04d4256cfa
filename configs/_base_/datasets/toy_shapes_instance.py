# python -m lab toy_shapes writes the data. Images keep their aspect ratios.
data_root = 'data/toy_shapes/'
metainfo = dict(
    classes=('sun', 'ball', 'kite', 'boat', 'square'),
    palette=[(230, 60, 60), (60, 180, 75), (65, 105, 225), (250, 190, 40), (160, 60, 200)])
scale = (160, 160)

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
