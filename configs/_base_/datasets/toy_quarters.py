# python -m lab toy_quarters writes the data. The class of a pixel is the quarter of the image it lies in, so images are
# not flipped or cropped.
_base_ = './toy_shapes_semantic.py'
data_root = 'data/toy_quarters/'
metainfo = dict(
    _delete_=True,
    classes=('upper left', 'upper right', 'lower left', 'lower right'),
    palette=[(230, 60, 60), (60, 180, 75), (65, 105, 225), (250, 190, 40)])
scale = (96, 96)
workers = dict(num_workers=0, persistent_workers=False)
quarters = dict(data_root=data_root, metainfo=metainfo)
train_dataloader = dict(
    batch_size=4,
    **workers,
    dataset=dict(
        **quarters,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='Resize', scale=scale, keep_ratio=False),
            dict(type='PackSegInputs'),
        ]))
val_dataloader = dict(
    **workers,
    dataset=dict(
        **quarters,
        indices=10,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=scale, keep_ratio=False),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ]))
test_dataloader = val_dataloader
