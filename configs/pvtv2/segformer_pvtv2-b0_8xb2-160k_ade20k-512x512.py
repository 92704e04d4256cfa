# SegFormer's head and setting: its rate is ten times that of the backbone.
_base_ = './upernet_pvtv2-b0_8xb2-160k_ade20k-512x512.py'
model = dict(
    decode_head=dict(
        _delete_=True,
        type='SegformerHead',
        in_channels=[32, 64, 160, 256],
        in_index=[0, 1, 2, 3],
        channels=256,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    auxiliary_head=None)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'head': dict(lr_mult=10.)}))
