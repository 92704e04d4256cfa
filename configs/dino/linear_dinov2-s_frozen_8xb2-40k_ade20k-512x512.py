_base_ = ['./linear_dinov3-s_frozen_8xb2-40k_ade20k-512x512.py', '../_base_/models/dinov2_s.py']
model = dict(
    data_preprocessor=dict(size=(518, 518), test_cfg=dict(size_divisor=14)),
    backbone=dict(_delete_=True, frozen_stages=12, **_base_.dinov2))
