_base_ = '../../configs/nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_4k_nuclei.py'
