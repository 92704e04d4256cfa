# From random weights: none are released for this size.
_base_ = './retinanet_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(arch='tiny', init_cfg=None))
