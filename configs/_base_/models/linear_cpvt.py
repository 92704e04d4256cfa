# A narrow plain CPVT of twelve blocks, for studies of position encodings on a CPU. The head is one linear layer,
# because padding would reveal positions. The toy's and CamVid's configs set `img_size` and `num_classes`.
_base_ = './segformer_nano.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.CPVT',
        # As wide as the first stage of nano.
        arch=dict(embed_dims=32, depth=12, num_heads=2, patch_size=8),
        cls_token=False,
        # A std of 0.02 is too small for so few channels.
        init_cfg=dict(type='Xavier', layer='Linear')),
    decode_head=dict(
        _delete_=True,
        type='FCNHead',
        in_channels=32,
        channels=32,
        num_convs=0,
        concat_input=False,
        dropout_ratio=0.,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)))
