# In a detector of nuclei.
_base_ = './distilled.py'
config = '../../nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
labels = {'all labels': None, '10 % of the labels': [*range(0, 320, 10)]}
variants = {
    f'{start}, {share}': dict(options={
        **options, **_base_.no_validation, 'train_dataloader.dataset.indices': images})
    for share, images in labels.items() for start, options in _base_.starts.items()
}
metrics = ['coco/bbox_mAP', 'coco/segm_mAP']
