# Training from random weights, in about 10 minutes on one core. This is the toy schedule, half as long and with one
# evaluation. Norms are selected by their class because their names differ between backbones.
_base_ = './toy.py'
max_iters = 400
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(
    paramwise_cfg=dict(norm_decay_mult=0., custom_keys=dict(_delete_=True, position_encoding=dict(decay_mult=0.))))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, T_max=max_iters - 50, eta_min=1e-5),
]
