# From random weights, in about 15 minutes of one core.
max_iters = 1000
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05),
    # Norms by class: other backbones do not call theirs 'norm'.
    paramwise_cfg=dict(norm_decay_mult=0., custom_keys={'position_encoding': dict(decay_mult=0.)}),
    clip_grad=dict(max_norm=1.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=100, end=max_iters, T_max=max_iters - 100, eta_min=1e-5),
]
randomness = dict(seed=0)
