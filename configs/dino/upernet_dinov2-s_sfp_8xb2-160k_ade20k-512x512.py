# As for DINOv3. Its patches have 14 pixels, so crops are padded to 37 of them; the loss ignores the padding.
_base_ = '../cpvt/upernet_cpvt-s_sfp_8xb2-160k_ade20k-512x512.py'
model = dict(
    data_preprocessor=dict(size=(518, 518), test_cfg=dict(size_divisor=14)),
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.CPVT',
        arch='small',
        img_size=518,
        patch_size=14,
        position_encoding=dict(type='LearnablePE', offset=0.1),
        layer_scale=1e-5,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://dinov2-small')))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(cls_token=dict(decay_mult=0.))))
