# A PEG beside the table of a trained transformer. It starts at zero, so the features are at first those of the file.
_base_ = './upernet_vit-table_camvid-192x256.py'
model = dict(backbone=dict(
    position_encoding=[dict(type='LearnablePE'), dict(type='PEG', init='zero')],
    init_cfg=dict(
        type='Pretrained', checkpoint='work_dirs/upernet_vit-table_camvid-192x256/iter_400.pth',
        allow_missing='position_encoding')))
