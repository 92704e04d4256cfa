_base_ = './mask-rcnn_dinov2-s_sfp_1x_coco.py'
model = dict(backbone=dict(frozen_stages=12))
