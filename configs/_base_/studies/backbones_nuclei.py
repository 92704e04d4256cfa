# Compares small backbones in one detector, from random weights, with the same data and schedule.
variants = {
    'PyramidCPVT nano': dict(config='../../nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'),
    'ResNet-18': dict(config='../../nuclei/mask-rcnn_r18_fpn_nuclei.py'),
    'MiT-b0': dict(config='../../nuclei/mask-rcnn_mit-b0_fpn_nuclei.py'),
    'PVTv2-b0': dict(config='../../nuclei/mask-rcnn_pvtv2-b0_fpn_nuclei.py'),
    'PyramidCPVT nano, convolution in the MLP': dict(
        config='../../nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py', options={'model.backbone.mlp_mode': 'conv'}),
}
metrics = ['coco/bbox_mAP', 'coco/bbox_mAP_50', 'coco/segm_mAP', 'coco/segm_mAP_50']
