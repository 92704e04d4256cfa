_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/camvid_360x480.py',
    '../_base_/schedules/gpu.py',
]
num_classes = 11
model = dict(
    data_preprocessor=dict(size=(360, 480)),
    decode_head=dict(num_classes=num_classes),
    auxiliary_head=dict(num_classes=num_classes))
default_hooks = dict(checkpoint=dict(interval=2000))
