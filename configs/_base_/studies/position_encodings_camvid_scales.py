# Position encodings trained on many sizes, as mmseg does: images resized by 0.5 to 2, and crops of the training size of
# position_encodings_camvid_native.py, whose tests these are.
_base_ = './position_encodings_camvid_native.py'
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(256, 192), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(192, 256), cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
variants = dict(_delete_=True, **{
    name: dict(options={**_base_.variants[name]['options'], 'train_dataloader.dataset.pipeline': pipeline})
    for name in ('learnable 2-D', 'rotary', 'LookHere', 'parabolic', 'PEG', 'PEG + learnable 2-D')
})
