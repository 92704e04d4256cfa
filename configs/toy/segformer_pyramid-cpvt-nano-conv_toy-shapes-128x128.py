# The convolutions in the MLPs learn faster from random weights: 350 iterations instead of 800.
_base_ = './segformer_pyramid-cpvt-nano_toy-shapes-128x128.py'
max_iters = 350
model = dict(backbone=dict(arch=dict(_delete_=True, name='nano', mlp_mode='conv')))
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, T_max=max_iters - 50, eta_min=1e-5),
]
