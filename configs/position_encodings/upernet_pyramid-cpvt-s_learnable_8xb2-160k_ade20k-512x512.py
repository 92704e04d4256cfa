# From random weights: the released ones were trained with PEG, which would decide the comparison.
# The table is for the crops that it is trained on.
_base_ = '../pyramid_cpvt/upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(init_cfg=None, img_size=512, position_encoding=dict(type='LearnablePE')))
