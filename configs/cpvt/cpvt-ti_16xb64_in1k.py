# The paper trains CPVT with this recipe, which is DeiT's.
_base_ = '../_base_/imagenet_deit.py'
model = dict(
    backbone=dict(type='cpvt_mm.CPVT', arch='tiny', out_type='cls_token', drop_path_rate=0.1),
    head=dict(in_channels=192))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(cls_token=dict(decay_mult=0.))))
