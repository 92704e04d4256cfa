_base_ = '../_base_/imagenet_deit.py'
model = dict(
    backbone=dict(type='cpvt_mm.CPVT', arch='tiny', cls_token=False, out_type='gap', drop_path_rate=0.1),
    head=dict(in_channels=192))
