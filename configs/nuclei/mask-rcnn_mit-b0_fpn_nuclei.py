# MiT-b0 as a class of mmdet: PVTv2 with MLPs of four times the width is the same network. The maps of mmseg's
# MixVisionTransformer are not contiguous in memory, but mmcv's RoIAlign reads them as if they were.
_base_ = './mask-rcnn_pvtv2-b0_fpn_nuclei.py'
model = dict(backbone=dict(mlp_ratios=[4, 4, 4, 4]))
