# In a segmentor of street scenes. Its training images are frames of videos, so that a tenth is every tenth frame.
_base_ = './distilled.py'
config = '../../camvid/segformer_pyramid-cpvt-nano_camvid-192x256.py'
labels = {'all labels': None, '10 % of the labels': [*range(0, 367, 10)]}
variants = {
    f'{start}, {share}': dict(options={
        **options, **_base_.no_validation, 'train_dataloader.dataset.indices': images})
    for share, images in labels.items() for start, options in _base_.starts.items()
}
metrics = ['mIoU']
