# Images of tests are padded to whole patches, and the padding is cut off the prediction: else the map, which covers
# whole patches, would be shrunk to the image.
_base_ = '../cpvt/upernet_cpvt-s_sfp_8xb2-160k_ade20k-512x512.py'
model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=16)),
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.CPVT',
        arch='small',
        position_encoding=dict(type='RotaryPE', form='dinov3'),
        num_register_tokens=4,
        layer_scale=1e-5,
        norm_eps=1e-5,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://dinov3-small')))
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(cls_token=dict(decay_mult=0.), register_tokens=dict(decay_mult=0.))))
