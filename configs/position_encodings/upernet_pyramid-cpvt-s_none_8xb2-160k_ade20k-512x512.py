# From random weights: the released weights were trained with PEG, which would bias the comparison.
_base_ = '../pyramid_cpvt/upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(init_cfg=None, position_encoding=None))
