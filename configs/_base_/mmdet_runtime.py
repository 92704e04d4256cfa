# mmdet's runtime, counted in iterations instead of epochs.
_base_ = 'mmdet::_base_/default_runtime.py'
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=200, max_keep_ckpts=2),
    non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
log_processor = dict(by_epoch=False)
