# python -m lab toy_quarters writes the data. The class of a pixel is the quarter of the image it lies in, so images are
# not flipped or cropped.
data_root = 'data/toy_quarters/'
metainfo = dict(
    classes=('upper left', 'upper right', 'lower left', 'lower right'),
    palette=[(230, 60, 60), (60, 180, 75), (65, 105, 225), (250, 190, 40)])
scale = (96, 96)
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='Resize', scale=scale, keep_ratio=False),
            dict(type='PackSegInputs'),
        ]))
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        metainfo=metainfo,
        data_prefix=dict(img_path='images/validation', seg_map_path='annotations/validation'),
        indices=10,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=scale, keep_ratio=False),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ]))
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
