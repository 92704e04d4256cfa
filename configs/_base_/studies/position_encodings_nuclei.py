# Compares position encodings in a detector, at test sizes from 0.5 to 2 times those of the training. Neck and heads
# have padded convolutions, which show the border, too.
_base_ = './position_encodings.py'
config = '../../nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
# Does position help, or the convolution? With k = 1, a PEG encodes no position. The last variant learns no convolution.
pegs = {
    'PEG, k = 1': dict(type='PEG', kernel_size=1),
    'PEG in every block': dict(type='PEG', positions=(0, 1)),
    'PEG, not trained': dict(type='PEG', trainable=False),
}
# Tables and biases are for the crops of the training.
variants = {name: dict(options={'model.backbone.img_size': 320}) for name in _base_.variants} | {
    name: dict(options={'model.backbone.position_encoding': encoding, 'model.backbone.img_size': 320})
    for name, encoding in pegs.items()
}
tests = {
    f'{ratio:g}x': {'test_dataloader.dataset.pipeline.1.scale_factor': ratio}
    for ratio in (0.5, 0.75, 1., 1.5, 2.)
}
metrics = ['coco/bbox_mAP', 'coco/segm_mAP']
