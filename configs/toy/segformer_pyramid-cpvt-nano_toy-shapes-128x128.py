# From random weights: none are released for nano.
# For comparisons of position encodings: only the backbone's encoding has information about positions. Images are
# resized to squares, which need no padding.
_base_ = [
    '../_base_/models/segformer_nano.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/toy_shapes_semantic.py',
    '../_base_/schedules/toy.py',
]
size = (128, 128)

model = dict(backbone=dict(img_size=128), decode_head=dict(num_classes=6))
train_dataloader = dict(
    batch_size=16,
    dataset=dict(pipeline=[
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations'),
        dict(type='Resize', scale=size, keep_ratio=False),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PackSegInputs'),
    ]))
val_dataloader = dict(
    dataset=dict(pipeline=[
        dict(type='LoadImageFromFile'),
        dict(type='Resize', scale=size, keep_ratio=False),
        dict(type='LoadAnnotations'),
        dict(type='PackSegInputs'),
    ]))
test_dataloader = val_dataloader
train_cfg = dict(val_interval=800)
default_hooks = dict(checkpoint=dict(interval=200, max_keep_ckpts=2))
