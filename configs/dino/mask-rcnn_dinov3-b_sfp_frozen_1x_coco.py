_base_ = './mask-rcnn_dinov3-b_sfp_1x_coco.py'
model = dict(backbone=dict(frozen_stages=12))
