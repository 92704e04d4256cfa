_base_ = './upernet_cpvt-s_sfp_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(arch='tiny', init_cfg=dict(checkpoint='cpvt_mm://deit-tiny')), neck=dict(in_channels=192))
