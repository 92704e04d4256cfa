# DINOv3-S, for configs that write `backbone=dict(_delete_=True, **_base_.dinov3)`.
dinov3 = dict(
    type='cpvt_mm.CPVT',
    arch=dict(name='small', num_register_tokens=4, layer_scale=1e-5, norm_eps=1e-5),
    position_encoding=dict(type='RotaryPE', form='dinov3'),
    init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://dinov3-small'))
