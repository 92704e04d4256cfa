# From random weights: the released ones were trained with PEG, which would decide the comparison.
# The table is of 224 pixels a side, as ImageNet's models have it, and stretched to every image.
_base_ = '../pyramid_cpvt/mask-rcnn_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(init_cfg=None, position_encoding=dict(type='LearnablePE')))
