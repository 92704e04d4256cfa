_base_ = '../pyramid_cpvt/mask-rcnn_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(position_encoding=dict(type='LearnablePE')))
