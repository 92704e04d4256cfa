# ViTDet's pyramid and optimizer (arXiv 2203.16527, section 3 and appendix A.2) in mmdet's 1x schedule of 8 x 2 images.
# There is no class token, as in CPVT-GAP, because a detector reads patches only. Weights with a trained class token
# need cls_token=True; add decay_mult=0 for it to custom_keys.
_base_ = 'mmdet::mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        _delete_=True,
        type='cpvt_mm.CPVT',
        arch='small',
        cls_token=False,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://deit-small', allow_missing='position_encoding')),
    neck=dict(_delete_=True, type='cpvt_mm.SimpleFeaturePyramid', in_channels=384, num_outs=5))
optim_wrapper = dict(
    constructor='openmmlab_tools.MergedOptimWrapperConstructor',
    optimizer=dict(_delete_=True, type='AdamW', lr=1e-4, weight_decay=0.1, fused=True),
    paramwise_cfg=dict(custom_keys={
        'position_encoding': dict(decay_mult=0.),
        'norm': dict(decay_mult=0.)
    }))
default_hooks = dict(non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
