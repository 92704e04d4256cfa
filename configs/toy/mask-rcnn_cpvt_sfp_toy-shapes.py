# From random weights: none are released for an arch of this size.
_base_ = './mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.CPVT',
        arch=dict(embed_dims=96, depth=4, num_heads=3, patch_size=8),
        img_size=160,
        cls_token=False),
    neck=dict(_delete_=True, type='cpvt_mm.SimpleFeaturePyramid', in_channels=96, in_stride=8, out_channels=64))
