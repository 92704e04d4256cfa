# Compares position encodings in a detector, at test sizes from 0.5 to 2 times those of the training. Neck and heads
# have padded convolutions, which show the border, too.
_base_ = './position_encodings.py'
config = '../../nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
# Tables and biases are for the crops of the training.
variants = {name: dict(options={'model.backbone.img_size': 320}) for name in _base_.variants}
tests = {
    f'{ratio:g}x': {'test_dataloader.dataset.pipeline.1.scale_factor': ratio}
    for ratio in (0.5, 0.75, 1., 1.5, 2.)
}
metrics = ['coco/bbox_mAP', 'coco/segm_mAP']
