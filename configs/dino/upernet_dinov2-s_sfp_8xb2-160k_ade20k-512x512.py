# As for DINOv3. Its patches have 14 pixels, so crops are padded to 37 of them; the loss ignores the padding.
_base_ = ['../cpvt/upernet_cpvt-s_sfp_8xb2-160k_ade20k-512x512.py', '../_base_/models/dinov2_s.py']
model = dict(
    data_preprocessor=dict(size=(518, 518), test_cfg=dict(size_divisor=14)),
    backbone=dict(_delete_=True, drop_path_rate=0.1, **_base_.dinov2))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(cls_token=dict(decay_mult=0.))))
