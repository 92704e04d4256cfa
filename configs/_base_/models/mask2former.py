# The head of Mask2Former, as mmdet's and mmseg's configs have it, for configs that write
# `decode_head=dict(_delete_=True, **_base_.mask2former_head)`.
_base_ = './mask_matching.py'
feed_forward = dict(embed_dims=256, num_fcs=2, ffn_drop=0., act_cfg=dict(type='ReLU', inplace=True))
attention = dict(embed_dims=256, num_heads=8, dropout=0., batch_first=True)
mask2former_head = dict(
    type='Mask2FormerHead',
    in_channels=[64, 128, 320, 512],
    strides=[4, 8, 16, 32],
    feat_channels=256,
    out_channels=256,
    num_classes=150,
    num_queries=100,
    num_transformer_feat_level=3,
    pixel_decoder=dict(
        type='mmdet.MSDeformAttnPixelDecoder',
        num_outs=3,
        norm_cfg=dict(type='GN', num_groups=32),
        act_cfg=dict(type='ReLU'),
        encoder=dict(
            num_layers=6,
            layer_cfg=dict(
                self_attn_cfg=dict(num_levels=3, num_points=4, **attention),
                ffn_cfg=dict(feedforward_channels=1024, **feed_forward))),
        positional_encoding=dict(num_feats=128, normalize=True)),
    enforce_decoder_input_project=False,
    positional_encoding=dict(num_feats=128, normalize=True),
    transformer_decoder=dict(
        return_intermediate=True,
        num_layers=9,
        layer_cfg=dict(
            self_attn_cfg=attention,
            cross_attn_cfg=attention,
            ffn_cfg=dict(feedforward_channels=2048, **feed_forward)),
        init_cfg=None),
    loss_cls=dict(type='mmdet.CrossEntropyLoss', loss_weight=2., class_weight=[1.] * 150 + [0.1]),
    loss_mask=dict(type='mmdet.CrossEntropyLoss', use_sigmoid=True, loss_weight=5.),
    loss_dice=dict(type='mmdet.DiceLoss', use_sigmoid=True, activate=True, naive_dice=True, eps=1., loss_weight=5.),
    train_cfg=_base_.matching)
# The backbone learns slowly. These are the keys of all of its norms, and of its position encodings, which do not decay;
# longer keys come before 'backbone'.
slow = dict(lr_mult=0.1, decay_mult=0.)
custom_keys = dict(backbone=dict(lr_mult=0.1), query_embed=dict(decay_mult=0.), query_feat=dict(decay_mult=0.),
                   level_embed=dict(decay_mult=0.), position_encoding=slow)
for name in ('patch_embed.norm', 'attn.sr.norm'):
    custom_keys[name] = slow
for stage, depth in enumerate((3, 4, 6, 3)):
    for block in range(depth):
        custom_keys[f'backbone.stages.{stage}.blocks.{block}.norm'] = slow
