_base_ = './mask-rcnn_cpvt-s_sfp_1x_coco.py'
model = dict(backbone=dict(arch='base', init_cfg=dict(checkpoint='cpvt_mm://deit-base')), neck=dict(in_channels=768))
