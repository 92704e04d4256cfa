# For comparisons of position encodings: only the backbone's encoding has information about positions. Whole images are
# resized to squares, which need no padding, also at 0.5, 0.75, 1.5 and 2 times this size.
_base_ = [
    '../_base_/models/segformer_nano.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/camvid_360x480.py',
    '../_base_/schedules/cpu.py',
]
size = (256, 256)

model = dict(backbone=dict(img_size=256), decode_head=dict(num_classes=11))
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
default_hooks = dict(checkpoint=dict(interval=200, max_keep_ckpts=2))
