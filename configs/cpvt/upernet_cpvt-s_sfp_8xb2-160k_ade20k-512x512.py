# The pyramid's setting. There is no class token, as in CPVT-GAP, because a segmentor reads patches only. Weights with a
# trained class token need cls_token=True; add decay_mult=0 for it to custom_keys.
_base_ = '../pyramid_cpvt/upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.CPVT',
        arch='small',
        cls_token=False,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://deit-small', allow_missing='position_encoding')),
    neck=dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=384),
    decode_head=dict(in_channels=[256, 256, 256, 256]),
    auxiliary_head=dict(in_channels=256))
