# From random weights: none are released for nano.
# To compare position encodings. Nothing but the backbone's encoding knows where a token is: the head has only 1x1
# convolutions, and images are squeezed into squares that need no padding.
_base_ = './upernet_pyramid-cpvt-nano_toy-shapes.py'
size = (128, 128)

model = dict(
    backbone=dict(img_size=128),
    decode_head=dict(
        _delete_=True,
        type='SegformerHead',
        in_channels=[32, 64, 128, 192],
        in_index=[0, 1, 2, 3],
        channels=64,
        dropout_ratio=0.1,
        num_classes=6,
        norm_cfg=dict(type='GN', num_groups=8),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    auxiliary_head=None)
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
