# For comparisons of position encodings: only the backbone's encoding has information about positions. Whole images keep
# their aspect of 480 x 360 pixels.
_base_ = './segformer_pyramid-cpvt-nano_camvid-256x256.py'
size = (256, 192)

model = dict(backbone=dict(img_size=size[::-1]))
train_dataloader = dict(
    dataset=dict(pipeline=[
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations'),
        dict(type='Resize', scale=size, keep_ratio=False),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PhotoMetricDistortion'),
        dict(type='PackSegInputs'),
    ]))
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=size, keep_ratio=False),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
