# Hard distillation from RegNetY-16GF, DeiT's teacher (arXiv 2012.12877, section 5.2). mmpretrain lacks this model, so
# timm builds it (pip install timm). Set teacher_checkpoint to DeiT's file,
# https://dl.fbaipublicfiles.com/deit/regnety_160-a5fe301d.pth, to a copy, or to other weights of timm's regnety_160.
_base_ = '../../../configs/cpvt/cpvt-ti_16xb64_in1k.py'
custom_imports = dict(imports=['projects.hard_distillation'])
model = dict(
    type='cpvt_mm.DistilledClassifier',
    backbone=dict(arch=dict(_delete_=True, name='tiny', dist_token=True)),
    head=dict(type='cpvt_mm.DistilledHead'),
    teacher=dict(type='TimmClassifier', model_name='regnety_160'),
    teacher_checkpoint=None)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(dist_token=dict(decay_mult=0.))))
