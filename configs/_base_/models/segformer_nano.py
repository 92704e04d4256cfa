# For comparisons of position encodings. The head has only 1x1 convolutions, because padding would reveal positions.
# The toy's and CamVid's configs set `num_classes`.
_base_ = './upernet_nano.py'
model = dict(
    decode_head=dict(
        _delete_=True,
        type='SegformerHead',
        in_channels=[32, 64, 128, 192],
        in_index=[0, 1, 2, 3],
        channels=64,
        dropout_ratio=0.1,
        norm_cfg=dict(type='GN', num_groups=8),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)),
    auxiliary_head=None)
