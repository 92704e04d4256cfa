# From random weights: none are released for nano.
# `python -m projects.video.toy_video` writes the data. A backbone that sees one frame at a time cannot
# tell directions, by which some of the classes differ.
_base_ = 'mmdet::mask2former_vis/mask2former_r50_8xb2-8e_youtubevis2019.py'
custom_imports = dict(imports=['projects.video'])
data_root = 'data/toy_video/'
metainfo = dict(
    classes=('ball right', 'ball left', 'kite right', 'kite left', 'square'),
    palette=[(230, 60, 60), (60, 180, 75), (65, 105, 225), (250, 190, 40), (160, 60, 200)])
num_classes = 5
channels = 64
attention = dict(embed_dims=channels, num_heads=4)
ffn = dict(embed_dims=channels, feedforward_channels=4 * channels)
load_frames = dict(
    type='TransformBroadcaster',
    transforms=[dict(type='LoadImageFromFile'), dict(type='LoadTrackAnnotations', with_mask=True)])

model = dict(
    init_cfg=None,
    data_preprocessor=dict(type='cpvt_mm.TrackDataPreprocessor', pad_size_divisor=16),
    backbone=dict(
        _delete_=True, type='cpvt_mm.PyramidCPVT', arch='nano', position_encoding=dict(type='PEG', ndim=3)),
    track_head=dict(
        in_channels=[32, 64, 128, 192],
        feat_channels=channels,
        out_channels=channels,
        num_classes=num_classes,
        num_queries=10,
        num_frames=3,
        pixel_decoder=dict(
            norm_cfg=dict(num_groups=8),
            encoder=dict(num_layers=2, layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=ffn)),
            positional_encoding=dict(num_feats=channels // 2)),
        positional_encoding=dict(num_feats=channels // 2),
        transformer_decoder=dict(
            num_layers=3, layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn)),
        # Five times mmdet's weight, relative to masks, because directions are harder to learn than outlines here.
        loss_cls=dict(loss_weight=10.0, class_weight=[1.0] * num_classes + [0.1]),
        train_cfg=dict(num_points=512)))

# Clips of neighbouring frames. They are never flipped, because that would swap the classes.
train_dataloader = dict(
    _delete_=True,
    batch_size=6,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='YouTubeVISDataset',
        data_root=data_root,
        dataset_version='2019',
        metainfo=metainfo,
        ann_file='instances_training.json',
        data_prefix=dict(img_path='images/training'),
        pipeline=[
            dict(type='UniformRefFrameSample', num_ref_imgs=2, frame_range=1, filter_key_img=True),
            load_frames,
            dict(type='PackTrackInputs'),
        ]))
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='instances_validation.json',
        data_prefix=dict(img_path='images/validation'),
        pipeline=[load_frames, dict(type='PackTrackInputs')]))
test_dataloader = val_dataloader
val_evaluator = dict(type='openmmlab_tools.YouTubeVISMetric', format_only=False)
test_evaluator = val_evaluator

max_iters = 2000
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    constructor='openmmlab_tools.MergedOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=2e-3, weight_decay=0.05, fused=True),
    paramwise_cfg=dict(custom_keys=dict(position_encoding=dict(decay_mult=0.), norm=dict(decay_mult=0.))),
    clip_grad=dict(max_norm=1.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=100, end=max_iters, T_max=max_iters - 100, eta_min=1e-5),
]
default_hooks = dict(
    logger=dict(log_metric_by_epoch=False),
    checkpoint=dict(interval=200, max_keep_ckpts=2),
    non_finite_loss=dict(type='openmmlab_tools.NonFiniteLossHook'))
randomness = dict(seed=0)
