_base_ = '../../configs/nuclei/mask-rcnn_pyramid-cpvt-nano_fpn_nuclei.py'
custom_imports = dict(imports=['my_encodings'])
