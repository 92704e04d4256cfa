_base_ = './upernet_cpvt-s_sfp_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(arch='base', init_cfg=dict(checkpoint='cpvt_mm://deit-base')), neck=dict(in_channels=768))
