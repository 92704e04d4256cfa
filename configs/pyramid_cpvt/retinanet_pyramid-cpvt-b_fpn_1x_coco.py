_base_ = './retinanet_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(arch='base', init_cfg=dict(checkpoint='cpvt_mm://pyramid-cpvt-base')))
