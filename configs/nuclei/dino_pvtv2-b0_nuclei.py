# DINO, for a CPU: fewer layers and queries than mmdet's, and maps from stride 8 on, which is small for small nuclei.
# With exact padding, an image has the same result in any batch.
_base_ = [
    '../_base_/models/pvtv2_b0.py',
    '../_base_/mmdet_runtime.py',
    '../_base_/datasets/nuclei_instance.py',
    '../_base_/schedules/queries.py',
]
embed_dims, levels, num_queries = 256, 3, 200
attention = dict(embed_dims=embed_dims, num_heads=8, dropout=0.)
deformable = dict(embed_dims=embed_dims, num_levels=levels, dropout=0.)
feed_forward = dict(embed_dims=embed_dims, feedforward_channels=512, ffn_drop=0.)
backbone = _base_.pvtv2_b0
backbone.update(init_cfg=None, out_indices=(1, 2, 3), padding='exact')
model = dict(
    type='DINO',
    num_queries=num_queries,
    num_feature_levels=levels,
    with_box_refine=True,
    as_two_stage=True,
    data_preprocessor=dict(
        type='cpvt_mm.DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32),
    backbone=backbone,
    neck=dict(
        type='ChannelMapper',
        in_channels=[64, 160, 256],
        kernel_size=1,
        out_channels=embed_dims,
        act_cfg=None,
        norm_cfg=dict(type='GN', num_groups=32),
        num_outs=levels),
    encoder=dict(num_layers=1, layer_cfg=dict(self_attn_cfg=deformable, ffn_cfg=feed_forward)),
    decoder=dict(
        num_layers=2,
        return_intermediate=True,
        layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=deformable, ffn_cfg=feed_forward),
        post_norm_cfg=None),
    positional_encoding=dict(num_feats=embed_dims // 2, normalize=True, offset=0., temperature=20),
    bbox_head=dict(
        type='DINOHead',
        num_classes=1,
        embed_dims=embed_dims,
        sync_cls_avg_factor=True,
        loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2., alpha=0.25, loss_weight=1.),
        loss_bbox=dict(type='L1Loss', loss_weight=5.),
        loss_iou=dict(type='GIoULoss', loss_weight=2.)),
    dn_cfg=dict(
        label_noise_scale=0.5,
        box_noise_scale=1.,
        group_cfg=dict(dynamic=True, num_groups=None, num_dn_queries=50)),
    train_cfg=dict(assigner=dict(
        type='HungarianAssigner',
        match_costs=[
            dict(type='FocalLossCost', weight=2.),
            dict(type='BBoxL1Cost', weight=5., box_format='xywh'),
            dict(type='IoUCost', iou_mode='giou', weight=2.),
        ])),
    test_cfg=dict(max_per_img=num_queries))
val_evaluator = dict(metric='bbox')
test_evaluator = dict(metric='bbox')
default_hooks = dict(batch=dict(type='cpvt_mm.BatchInvariantHook'))
