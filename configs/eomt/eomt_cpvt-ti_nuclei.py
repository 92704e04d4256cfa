_base_ = [
    '../_base_/models/eomt.py',
    '../_base_/mmdet_runtime.py',
    '../_base_/datasets/nuclei_instance.py',
    '../_base_/schedules/queries.py',
]
# Half of the nuclei are less than 21 pixels wide and high, and an image can have hundreds of them.
model = dict(
    backbone=dict(arch=dict(name='tiny', patch_size=8), num_queries=200),
    panoptic_head=dict(num_things_classes=1),
    panoptic_fusion_head=dict(num_things_classes=1),
    train_cfg=dict(num_points=2048),
    test_cfg=dict(max_per_image=200))
