# From random weights: none are released for an arch of this size.
# For the ablations of PEG: 12 x 12 cells, and only the encoding has information about positions.
_base_ = [
    '../_base_/models/linear_cpvt.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/toy_shapes_semantic.py',
    '../_base_/schedules/study.py',
]
size = (96, 96)

model = dict(backbone=dict(img_size=96), decode_head=dict(num_classes=6))
# The process that trains also reads the images, because it has one core.
workers = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(
    batch_size=4,
    **workers,
    dataset=dict(pipeline=[
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations'),
        dict(type='Resize', scale=size, keep_ratio=False),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PackSegInputs'),
    ]))
val_dataloader = dict(
    **workers,
    dataset=dict(
        indices=50,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='Resize', scale=size, keep_ratio=False),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ]))
test_dataloader = val_dataloader
# Figures of a test need more time than the test.
default_hooks = dict(checkpoint=dict(interval=160), report=None)
