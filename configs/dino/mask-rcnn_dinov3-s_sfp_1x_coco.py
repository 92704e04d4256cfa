# ViTDet's recipe (see configs/cpvt): its pyramid, drop path, and layer decay of 0.7. ViTDet computes attention in
# windows to save memory. torch's fused attention stores no matrix of weights, so all blocks stay global, as they were
# trained.
_base_ = ['../cpvt/mask-rcnn_cpvt-s_sfp_1x_coco.py', '../_base_/models/dinov3_s.py']
model = dict(backbone=dict(_delete_=True, drop_path_rate=0.1, **_base_.dinov3))
optim_wrapper = dict(
    constructor='cpvt_mm.LayerDecayOptimWrapperConstructor',
    paramwise_cfg=dict(
        layer_decay_rate=0.7,
        custom_keys=dict(cls_token=dict(decay_mult=0.), register_tokens=dict(decay_mult=0.))))
