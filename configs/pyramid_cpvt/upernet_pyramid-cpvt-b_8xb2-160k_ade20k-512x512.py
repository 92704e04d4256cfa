# The inherited drop_path_rate is 0.2, as the original hard-codes it for every size (segmentation/gvt.py of Twins).
# mmseg's port of this config has 0.3.
_base_ = './upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(backbone=dict(arch='base', init_cfg=dict(checkpoint='cpvt_mm://pyramid-cpvt-base')))
