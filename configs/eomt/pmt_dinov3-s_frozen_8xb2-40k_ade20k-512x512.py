# A frozen encoder, and a decoder of six blocks that learns (PMT, arXiv 2603.25398).
_base_ = './eomt_dinov3-s_8xb2-40k_ade20k-512x512.py'
model = dict(backbone=dict(type='cpvt_mm.FrozenMaskTransformer', num_query_blocks=6, mlp_ratio=1))
optim_wrapper = dict(optimizer=dict(lr=2e-4))
