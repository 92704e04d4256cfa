_base_ = './mask-rcnn_dinov3-s_sfp_frozen_1x_coco.py'
model = dict(backbone=dict(init_cfg=dict(checkpoint='cpvt_mm://lingbot-small')))
