_base_ = './semantic-fpn_pyramid-cpvt-s_8xb4-80k_ade20k-512x512.py'
model = dict(backbone=dict(arch='large', init_cfg=dict(checkpoint='cpvt_mm://pyramid-cpvt-large')))
