# Compares exact padding with ordinary padding. Crops are large, so that batches mix sizes from 256 x 256 to 512 x 512
# pixels. The neck has no GroupNorm, because its mean would include the padding of the map.
config = '../../nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
mixed_sizes = {'train_dataloader.dataset.pipeline.2.crop_size': (512, 512), 'model.neck.norm_cfg': None}
variants = {
    'padding=None': dict(options=mixed_sizes),
    "padding='exact'": dict(options={
        **mixed_sizes,
        'model.backbone.padding': 'exact',
        'model.data_preprocessor.type': 'cpvt_mm.DetDataPreprocessor',
    }),
}
tests = {'one by one': {}, 'batches of four': {'test_dataloader.batch_size': 4}}
metrics = ['coco/bbox_mAP', 'coco/bbox_mAP_50', 'coco/segm_mAP', 'coco/segm_mAP_50']
