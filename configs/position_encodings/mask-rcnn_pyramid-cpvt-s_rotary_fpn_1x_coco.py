# From random weights: the released weights were trained with PEG, which would bias the comparison.
_base_ = '../pyramid_cpvt/mask-rcnn_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(init_cfg=None, position_encoding=dict(type='RotaryPE')))
