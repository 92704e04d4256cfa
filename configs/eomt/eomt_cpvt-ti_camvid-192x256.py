_base_ = [
    '../_base_/models/eomt_semantic.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/camvid_192x256.py',
    '../_base_/schedules/cpu.py',
]
model = dict(decode_head=dict(num_classes=11))
optim_wrapper = dict(optimizer=dict(lr=5e-4))
default_hooks = dict(checkpoint=dict(interval=200, max_keep_ckpts=2))
