# Training from random weights in about ten seconds of one core, for studies with many rows. It is the schedule for a
# CPU, but shorter, and with a higher learning rate, which suits a narrow model.
_base_ = './cpu.py'
max_iters = 160
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=4e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=20, end=max_iters, T_max=max_iters - 20, eta_min=1e-5),
]
