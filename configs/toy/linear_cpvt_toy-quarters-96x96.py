# From random weights: none are released for an arch of this size.
# For the ablations of PEG: squares of 12 x 12 cells, and only the encoding has information about positions.
_base_ = [
    '../_base_/models/linear_cpvt.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/toy_quarters.py',
    '../_base_/schedules/study.py',
]
max_iters = 100  # a table needs no more

model = dict(backbone=dict(img_size=96), decode_head=dict(num_classes=4))
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=20),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=20, end=max_iters, T_max=max_iters - 20, eta_min=1e-5),
]
# Figures of a test need more time than the test.
default_hooks = dict(checkpoint=dict(interval=max_iters), report=None)
