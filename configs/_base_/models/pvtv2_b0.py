# PVT v2 b0, for configs that write `backbone=dict(_delete_=True, **_base_.pvtv2_b0)`.
pvtv2_b0 = dict(
    type='cpvt_mm.PyramidCPVT',
    arch='pvtv2-b0',
    position_encoding=None,
    drop_path_rate=0.1,
    init_cfg=dict(type='Pretrained', checkpoint='cpvt_mm://pvtv2-b0'))
