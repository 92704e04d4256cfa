# Images in their aspect of 4:3, or squashed to squares of as many tokens (49 instead of 48 in the last stage). Each is
# tested on images of both kinds, and on images twice as wide or as high.
_base_ = './position_encodings.py'
config = '../../camvid/segformer_pyramid-cpvt-nano_camvid-192x256.py'
shapes = {'as they are': (256, 192), 'squashed': (224, 224), 'wide': (320, 160), 'tall': (160, 320)}  # width and height
variants = dict(_delete_=True, **{
    f'{name}, trained {shape}': dict(options={
        **_base_.variants[name]['options'],
        'train_dataloader.dataset.pipeline.2.scale': shapes[shape],
        'train_dataloader.dataset.pipeline.2.keep_ratio': False,
        'model.backbone.img_size': shapes[shape][::-1],
    })
    for name in ('learnable 2-D', 'rotary', 'PEG', 'PEG + learnable 2-D')
    for shape in ('as they are', 'squashed')
})
tests = {
    f'tested {name}': {'test_dataloader.dataset.pipeline.1.scale': scale,
                       'test_dataloader.dataset.pipeline.1.keep_ratio': False} for name, scale in shapes.items()
}
metrics = ['mIoU']
