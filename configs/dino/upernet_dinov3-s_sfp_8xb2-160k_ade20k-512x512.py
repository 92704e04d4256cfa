# Images of tests are padded to whole patches, and the padding is cut off the prediction: else the map, which covers
# whole patches, would be shrunk to the image.
_base_ = ['../cpvt/upernet_cpvt-s_sfp_8xb2-160k_ade20k-512x512.py', '../_base_/models/dinov3_s.py']
model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=16)),
    backbone=dict(_delete_=True, drop_path_rate=0.1, **_base_.dinov3))
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(cls_token=dict(decay_mult=0.), register_tokens=dict(decay_mult=0.))))
