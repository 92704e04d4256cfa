# Fine-tunes a backbone that was trained with a table of positions, as it is, and with a PEG that starts at zero. Train
# it first:
#   cpvt_mm train configs/camvid/segformer_pyramid-cpvt-nano_camvid-256x256.py --work-dir work_dirs/trained \
#       --cfg-options model.backbone.position_encoding.type=LearnablePE
config = '../../camvid/segformer_pyramid-cpvt-nano_camvid-256x256.py'
trained = dict(type='Pretrained', checkpoint='work_dirs/trained/iter_400.pth')
variants = {
    'table': dict(options={
        'model.backbone.position_encoding': dict(type='LearnablePE'),
        'model.backbone.init_cfg': trained}),
    'table and PEG': dict(options={
        'model.backbone.position_encoding': [dict(type='LearnablePE'), dict(type='PEG', init='zero')],
        'model.backbone.init_cfg': dict(trained, allow_missing='position_encoding')}),
}
tests = {f'{size} px': {'test_dataloader.dataset.pipeline.1.scale': (size, size)} for size in (128, 256, 384, 512)}
metrics = ['mIoU']
