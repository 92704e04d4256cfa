_base_ = './retinanet_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(arch='large', init_cfg=dict(checkpoint='cpvt_mm://pyramid-cpvt-large')))
