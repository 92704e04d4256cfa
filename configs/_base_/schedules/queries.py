# Heads of queries learn slowly from random weights: minutes on a GPU, hours on a CPU.
_base_ = './cpu.py'
max_iters = 2000
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=3e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=100, end=max_iters, T_max=max_iters - 100, eta_min=3e-6),
]
