# DeiT's recipe with the changes of Twins-PCPVT-S: a drop path rate of 0.2, and gradients clipped at a norm of 5 (arXiv
# 2104.13840, section 4.1). As in the original code, there is no repeated augmentation.
_base_ = '../_base_/imagenet_deit.py'
model = dict(
    backbone=dict(type='cpvt_mm.PyramidCPVT', arch='small', out_indices=(3,), out_norm=True, drop_path_rate=0.2),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(in_channels=512))
train_dataloader = dict(sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True))
optim_wrapper = dict(clip_grad=dict(max_norm=5.))
