_base_ = './linear_dinov3-s_frozen_8xb2-40k_ade20k-512x512.py'
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
        frozen_stages=12,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://dinov2-small')))
