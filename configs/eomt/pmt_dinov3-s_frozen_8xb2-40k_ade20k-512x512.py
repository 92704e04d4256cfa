# PMT (arXiv 2603.25398): a frozen encoder, and a decoder of six blocks that learns. The learning rate, its warm-up and
# its cosine are the authors' for DINOv3-L and ADE20K. They train for 16 epochs, here it is 31, as in the base.
_base_ = './eomt_dinov3-s_8xb2-40k_ade20k-512x512.py'
model = dict(backbone=dict(type='cpvt_mm.FrozenMaskTransformer', num_query_blocks=6, mlp_ratio=1))
optim_wrapper = dict(optimizer=dict(lr=2e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=6000),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=6000, end=40000, T_max=34000, eta_min=1e-9),
]
