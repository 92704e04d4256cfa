# A linear classifier of frozen patches.
_base_ = './upernet_dinov3-s_sfp_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(frozen_stages=12),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type='FCNHead',
        in_channels=384,
        channels=384,
        num_convs=0,
        concat_input=False,
        dropout_ratio=0.,
        num_classes=150,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    auxiliary_head=None)
max_iters = 40000
train_cfg = dict(max_iters=max_iters, val_interval=8000)
optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=1e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=1500, end=max_iters),
]
default_hooks = dict(checkpoint=dict(interval=8000))
