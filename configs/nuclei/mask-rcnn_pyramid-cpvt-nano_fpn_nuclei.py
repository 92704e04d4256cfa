_base_ = [
    '../_base_/models/mask_rcnn_nano.py',
    '../_base_/mmdet_runtime.py',
    '../_base_/datasets/nuclei_instance.py',
    '../_base_/schedules/cpu.py',
]
num_classes = 1
# Half of the nuclei are less than 21 pixels wide and high, and an image can have hundreds of them.
model = dict(
    rpn_head=dict(anchor_generator=dict(scales=[2])),
    roi_head=dict(bbox_head=dict(num_classes=num_classes), mask_head=dict(num_classes=num_classes)),
    train_cfg=dict(rpn=dict(sampler=dict(num=256)), rpn_proposal=dict(nms_pre=1000, max_per_img=500),
                   rcnn=dict(sampler=dict(num=128))),
    test_cfg=dict(rpn=dict(nms_pre=1000, max_per_img=500), rcnn=dict(max_per_img=500)))
