# The setting of Mask2Former, as mmseg has it. Here, position encodings have no weight decay, either.
_base_ = ['./upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py', '../_base_/models/mask2former.py']
model = dict(
    data_preprocessor=dict(test_cfg=dict(size_divisor=32)),
    decode_head=dict(_delete_=True, **_base_.mask2former_head),
    auxiliary_head=None)
optim_wrapper = dict(
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    clip_grad=dict(max_norm=0.01, norm_type=2),
    paramwise_cfg=dict(norm_decay_mult=0., custom_keys=dict(_delete_=True, **_base_.custom_keys)))
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=0., by_epoch=False, begin=0, end=_base_.max_iters)]
