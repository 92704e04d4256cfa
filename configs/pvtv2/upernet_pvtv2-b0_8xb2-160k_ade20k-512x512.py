# The setting of Swin.
_base_ = ['../pyramid_cpvt/upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py', '../_base_/models/pvtv2_b0.py']
model = dict(
    backbone=dict(_delete_=True, **_base_.pvtv2_b0),
    decode_head=dict(in_channels=[32, 64, 160, 256]),
    auxiliary_head=dict(in_channels=160))
