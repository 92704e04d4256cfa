# Layer-wise learning-rate decay of 0.7 per block, as ViTDet uses it for a pretrained ViT-B (detectron2,
# projects/ViTDet/configs/COCO/mask_rcnn_vitdet_b_100ep.py).
_base_ = './mask-rcnn_cpvt-b_sfp_1x_coco.py'
optim_wrapper = dict(
    constructor='cpvt_mm.LayerDecayOptimWrapperConstructor', paramwise_cfg=dict(layer_decay_rate=0.7))
