# Nuclei in their aspect ratio, or squashed to squares with the same number of tokens (within 7 %). Half of the images
# are squares of 256 pixels, which stay as they are. The other images are larger squares, 4:3 or 5:4. The tests are the
# same as in aspect_camvid.py.
_base_ = './position_encodings.py'
config = '../../nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
shapes = {'as they are': (296, 256), 'squashed': (256, 256), 'wide': (352, 176), 'tall': (176, 352)}  # width and height
load = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True)]
resize = {name: dict(type='Resize', scale=scale, keep_ratio=name == 'as they are') for name, scale in shapes.items()}
flip = dict(type='RandomFlip', prob=0.75, direction=['horizontal', 'vertical', 'diagonal'])
pack = dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
variants = dict(_delete_=True, **{
    f'{name}, trained {shape}': dict(options={
        **_base_.variants[name]['options'],
        'train_dataloader.dataset.pipeline': [*load, resize[shape], flip, dict(type='PackDetInputs')],
        'model.backbone.img_size': shapes[shape][::-1],
    })
    for name in ('learnable 2-D', 'rotary', 'PEG')
    for shape in ('as they are', 'squashed')
})
tests = {
    f'tested {name}': {'test_dataloader.dataset.pipeline': [load[0], resize[name], load[1], pack]} for name in shapes
}
metrics = ['coco/bbox_mAP', 'coco/segm_mAP']
