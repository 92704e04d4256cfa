# For `make demo`. The backbone starts from the weights in this package, so it needs no network.
_base_ = './segformer_pyramid-cpvt-nano-conv_toy-shapes-128x128.py'
model = dict(backbone=dict(
    arch=dict(_delete_=True, name='nano'),
    init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pyramid-cpvt-nano')))
