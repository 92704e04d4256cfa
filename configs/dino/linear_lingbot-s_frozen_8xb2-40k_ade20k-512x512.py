_base_ = './linear_dinov3-s_frozen_8xb2-40k_ade20k-512x512.py'
model = dict(backbone=dict(init_cfg=dict(checkpoint='cpvt_mm://lingbot-small')))
