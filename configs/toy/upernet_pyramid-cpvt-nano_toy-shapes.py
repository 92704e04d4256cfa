# From random weights: none are released for nano.
_base_ = [
    '../_base_/models/upernet_nano.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/toy_shapes_semantic.py',
    '../_base_/schedules/toy.py',
]
num_classes = 6
model = dict(decode_head=dict(num_classes=num_classes), auxiliary_head=dict(num_classes=num_classes))
# With 8 images, mIoU ends at 49 or at 72, as seed and processor happen to be: some trainings do not learn the places.
train_dataloader = dict(batch_size=16)
default_hooks = dict(checkpoint=dict(interval=200, max_keep_ckpts=2))
