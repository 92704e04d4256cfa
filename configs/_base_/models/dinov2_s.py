# DINOv2-S, for configs that write `backbone=dict(_delete_=True, **_base_.dinov2)`.
dinov2 = dict(
    type='cpvt_mm.CPVT',
    arch=dict(name='small', patch_size=14, layer_scale=1e-5),
    img_size=518,
    position_encoding=dict(type='LearnablePE', offset=0.1),
    init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://dinov2-small'))
