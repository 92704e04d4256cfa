# A plain transformer with a table of positions, which upernet_vit-table-peg_camvid-192x256.py then gets a PEG.
_base_ = './upernet_pyramid-cpvt-nano_camvid-192x256.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.CPVT',
        arch=dict(embed_dims=96, depth=4, num_heads=3),
        img_size=(192, 256),
        cls_token=False,
        position_encoding=dict(type='LearnablePE')),
    neck=dict(type='cpvt_mm.SimpleFeaturePyramid', in_channels=96, out_channels=64, num_outs=4),
    decode_head=dict(in_channels=[64, 64, 64, 64]),
    auxiliary_head=dict(in_channels=64))
