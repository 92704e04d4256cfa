# Where position should come from in PVT v2 and MiT: the convolution in each MLP (theirs), a PEG, both, or neither.
peg = dict(type='PEG')
sources = {  # arguments, and fields of the arch
    'convolution': ({}, {}),
    'convolution, PEG': (dict(position_encoding=dict(**peg, init='zero')), {}),
    'PEG': (dict(position_encoding=peg), dict(mlp_mode='linear')),
    'neither': ({}, dict(mlp_mode='linear')),
}
variants = {
    f'{arch}: {name}': dict(options={f'model.backbone.{key}': value for key, value in dict(
        arch=dict(name=arch, **parts), drop_path_rate=0., init_cfg=None, **options).items()})
    for arch in ('pvtv2-b0', 'mit-b0') for name, (options, parts) in sources.items()
}
# From random weights, backbone and heads have the same rate.
for variant in variants.values():
    variant['options']['optim_wrapper.paramwise_cfg.custom_keys'] = dict(position_encoding=dict(decay_mult=0.))
