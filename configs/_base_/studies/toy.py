# Trains all configs for toy shapes, for the table in configs/toy/README.md. Detectors have a box and a mask AP,
# segmentors an mIoU.
variants = {name: dict(config=f'../../toy/{name}.py') for name in (
    'mask-rcnn_pyramid-cpvt-nano_fpn_toy-shapes', 'mask-rcnn_pyramid-cpvt-nano-conv_fpn_toy-shapes',
    'mask-rcnn_pyramid-cpvt-nano-distilled_fpn_toy-shapes', 'mask-rcnn_cpvt_sfp_toy-shapes',
    'upernet_pyramid-cpvt-nano_toy-shapes', 'upernet_cpvt_sfp_toy-shapes',
    'segformer_pyramid-cpvt-nano_toy-shapes-128x128', 'segformer_pyramid-cpvt-nano-conv_toy-shapes-128x128',
    'segformer_pyramid-cpvt-nano-distilled_toy-shapes-128x128')}
metrics = ['coco/bbox_mAP', 'coco/segm_mAP', 'mIoU']
