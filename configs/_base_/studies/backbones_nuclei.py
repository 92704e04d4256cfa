# Compares small backbones in one detector.
_base_ = './backbones.py'
config = '../../nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
channels = {'model.neck.in_channels': [42, 84, 168, 252]}
variants = {
    'PyramidCPVT nano': dict(),
    'ResNet-18': dict(config='../../nuclei/mask-rcnn_r18_fpn_nuclei.py'),
    'MiT-b0': dict(config='../../nuclei/mask-rcnn_mit-b0_fpn_nuclei.py'),
    'PVTv2-b0': dict(config='../../nuclei/mask-rcnn_pvtv2-b0_fpn_nuclei.py'),
    'PyramidCPVT nano, convolution in the MLP': dict(options=_base_.conv),
    'the same, for the time of PVTv2-b0': dict(options={**_base_.conv, **_base_.longer}),
    'the same, with the parameters of PVTv2-b0': dict(options={**_base_.conv, **_base_.wider, **channels}),
}
metrics = ['coco/bbox_mAP', 'coco/bbox_mAP_50', 'coco/segm_mAP', 'coco/segm_mAP_50']
