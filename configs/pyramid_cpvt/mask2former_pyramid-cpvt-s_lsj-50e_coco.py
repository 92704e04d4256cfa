# The setting of Mask2Former, as mmdet has it. Here, position encodings have no weight decay, either.
_base_ = ['mmdet::mask2former/mask2former_r50_8xb2-lsj-50e_coco.py', '../_base_/models/mask2former.py']
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.PyramidCPVT',
        arch='small',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pyramid-cpvt-small')),
    panoptic_head=dict(in_channels=[64, 128, 320, 512]))
optim_wrapper = dict(
    constructor='openmmlab_tools.MergedOptimWrapperConstructor',
    optimizer=dict(fused=True),
    paramwise_cfg=dict(custom_keys=_base_.custom_keys))
default_hooks = dict(non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
