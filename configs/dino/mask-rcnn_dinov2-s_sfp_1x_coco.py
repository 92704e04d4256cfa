# The config for DINOv3, with patches of 14 pixels. So the strides are 3.5, 7, 14, 28 and 56, and anchors and RoIs must
# use them. The scale keeps the anchors of the other configs, 32 to 512 pixels.
_base_ = ['../cpvt/mask-rcnn_cpvt-s_sfp_1x_coco.py', '../_base_/models/dinov2_s.py']
model = dict(
    data_preprocessor=dict(pad_size_divisor=14),
    backbone=dict(_delete_=True, drop_path_rate=0.1, **_base_.dinov2),
    rpn_head=dict(anchor_generator=dict(strides=[3.5, 7, 14, 28, 56], scales=[64 / 7])),
    roi_head=dict(
        bbox_roi_extractor=dict(featmap_strides=[3.5, 7, 14, 28]),
        mask_roi_extractor=dict(featmap_strides=[3.5, 7, 14, 28])))
optim_wrapper = dict(
    constructor='cpvt_mm.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(layer_decay_rate=0.7, custom_keys=dict(cls_token=dict(decay_mult=0.))))
