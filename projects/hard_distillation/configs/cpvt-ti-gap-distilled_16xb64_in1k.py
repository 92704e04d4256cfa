_base_ = './cpvt-ti-distilled_16xb64_in1k.py'
model = dict(backbone=dict(cls_token=False, out_type='gap'))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(
    _delete_=True, position_encoding=dict(decay_mult=0.), dist_token=dict(decay_mult=0.))))
