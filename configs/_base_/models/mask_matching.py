# How Mask2Former matches queries with objects in training; EoMT does the same.
matching = dict(
    num_points=12544,
    oversample_ratio=3.,
    importance_sample_ratio=0.75,
    assigner=dict(
        type='mmdet.HungarianAssigner',
        match_costs=[
            dict(type='mmdet.ClassificationCost', weight=2.),
            dict(type='mmdet.CrossEntropyLossCost', weight=5., use_sigmoid=True),
            dict(type='mmdet.DiceCost', weight=5., pred_act=True, eps=1.),
        ]),
    sampler=dict(type='mmdet.MaskPseudoSampler'))
