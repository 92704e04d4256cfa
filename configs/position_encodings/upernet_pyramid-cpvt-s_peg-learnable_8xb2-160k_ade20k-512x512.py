# From random weights: the released weights were trained with PEG, which would bias the comparison.
# The table has the size of the training crops.
_base_ = '../pyramid_cpvt/upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(init_cfg=None, img_size=512, position_encoding=[dict(type='PEG'), dict(type='LearnablePE')]))
