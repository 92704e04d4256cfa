_base_ = [
    '../_base_/models/upernet_nano.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/camvid_192x256.py',
    '../_base_/schedules/cpu.py',
]
num_classes = 11
model = dict(decode_head=dict(num_classes=num_classes), auxiliary_head=dict(num_classes=num_classes))
default_hooks = dict(checkpoint=dict(interval=200, max_keep_ckpts=2))
