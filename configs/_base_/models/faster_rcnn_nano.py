# Faster R-CNN, narrow enough to train on a CPU: the Mask R-CNN of the same size, without masks.
_base_ = './mask_rcnn_nano.py'
model = dict(
    type='FasterRCNN',
    data_preprocessor=dict(pad_mask=False),
    roi_head=dict(mask_roi_extractor=None, mask_head=None))
