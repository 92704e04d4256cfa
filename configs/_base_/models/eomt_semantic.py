# EoMT (arXiv 2503.19108) in mmseg. Configs set the number of classes. With exact padding, an image has the same result
# in any batch.
_base_ = './eomt.py'
model = dict(
    _delete_=True,
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='cpvt_mm.SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size_divisor=32,
        test_cfg=dict(size_divisor=32)),
    backbone=_base_.model.backbone,
    decode_head=dict(type='cpvt_mm.PlainMaskSegHead', in_channels=192, train_cfg=_base_.matching),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
