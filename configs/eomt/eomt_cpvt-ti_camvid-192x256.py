_base_ = [
    '../_base_/models/eomt_semantic.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/camvid_192x256.py',
    '../_base_/schedules/queries.py',
]
# Fewer points, and fewer queries, for a CPU.
model = dict(
    backbone=dict(num_queries=30),
    decode_head=dict(num_classes=11, train_cfg=dict(num_points=2048)))
default_hooks = dict(checkpoint=dict(interval=500, max_keep_ckpts=2))
