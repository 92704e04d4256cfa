# Training from random weights, on one GPU.
_base_ = './cpu.py'
max_iters = 8000
train_cfg = dict(max_iters=max_iters, val_interval=2000)
optim_wrapper = dict(optimizer=dict(lr=2e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=500),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=500, end=max_iters, T_max=max_iters - 500, eta_min=2e-6),
]
