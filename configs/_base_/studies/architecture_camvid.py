# Compares the pyramid with MiT-b0, one difference at a time.
config = '../../camvid/upernet_pyramid-cpvt-nano_camvid-192x256.py'
mit = '../../camvid/upernet_mit-b0_camvid-192x256.py'
conv = {'model.backbone.arch': dict(name='nano', mlp_mode='conv')}
# Initial weights of linear layers are about as large as MiT's: a std of 0.05 to 0.18 instead of 0.02.
xavier = {'model.backbone.init_cfg': dict(type='Xavier', layer='Linear')}
variants = {
    'nano': dict(),
    'convolution in the MLP': dict(options=conv),
    'convolution in the MLP, no PEG': dict(options={**conv, 'model.backbone.position_encoding': None}),
    'Xavier': dict(options=xavier),
    'Xavier, convolution in the MLP': dict(options={**conv, **xavier}),
    'norms of outputs': dict(options={'model.backbone.out_norm': True}),
    "MiT-b0's widths": dict(options={
        'model.backbone.arch': dict(embed_dims=(32, 64, 160, 256), depths=(2, 2, 2, 2), num_heads=(1, 2, 5, 8),
                                    mlp_ratios=(4, 4, 4, 4), sr_ratios=(8, 4, 2, 1)),
        'model.decode_head.in_channels': [32, 64, 160, 256],
        'model.auxiliary_head.in_channels': 160,
    }),
    'MiT-b0': dict(config=mit),
    'MiT-b0, patches do not overlap': dict(config=mit, options={'model.backbone.patch_sizes': [4, 2, 2, 2]}),
}
metrics = ['mIoU']
