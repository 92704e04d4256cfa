_base_ = './mask-rcnn_pyramid-cpvt-s_fpn_amp-ms-crop-3x_coco.py'
model = dict(backbone=dict(arch='large', init_cfg=dict(checkpoint='cpvt_mm://pyramid-cpvt-large')))
