# From random weights: none are released for an arch of this size.
_base_ = './upernet_pyramid-cpvt-nano_toy-shapes.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.CPVT',
        arch=dict(embed_dims=96, depth=4, num_heads=3, patch_size=8),
        img_size=160,
        cls_token=False),
    neck=dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=96, in_stride=8, out_channels=64),
    decode_head=dict(in_channels=[64, 64, 64, 64]),
    auxiliary_head=dict(in_channels=64))
