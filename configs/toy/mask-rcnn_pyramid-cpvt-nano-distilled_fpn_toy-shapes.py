# For `make demo` and the first tutorial. The backbone starts from the weights in this package, so it needs no network.
_base_ = './mask-rcnn_pyramid-cpvt-nano-conv_fpn_toy-shapes.py'
model = dict(backbone=dict(
    arch=dict(_delete_=True, name='nano'),
    init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pyramid-cpvt-nano')))
