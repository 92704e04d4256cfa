# In a detector of nuclei, at the training size and twice that.
_base_ = './peg_in_pvt.py'
config = '../../nuclei/mask-rcnn_pvtv2-b0-pretrained_fpn_nuclei.py'
tests = {f'{ratio}x': {'test_dataloader.dataset.pipeline.1.scale_factor': float(ratio)} for ratio in (1, 2)}
metrics = ['coco/bbox_mAP', 'coco/segm_mAP']
