# The ablations of CPVT (arXiv 2102.10882), and PEG with other padding than zeros, in a plain CPVT of twelve blocks. All
# are trained on 12 x 12 cells, and tested at 0.5 to 3 times this size. A kernel of 23 x 23 reaches from each of these
# cells to all others, as 27 x 27 does in the paper's 14 x 14 cells.
variants = {
    name: dict(options={'model.backbone.position_encoding': encoding})
    for name, encoding in {
        'none': None,
        'table': dict(type='LearnablePE'),
        'PEG': dict(type='PEG'),
        'PEG, circular': dict(type='PEG', padding='circular'),
        'PEG, replicate': dict(type='PEG', padding='replicate'),
        'PEG, reflect': dict(type='PEG', padding='reflect'),
        'twelve of kernel 1': dict(type='PEG', positions=tuple(range(12)), kernel_size=1),
        'PEG in five blocks': dict(type='PEG', positions=(0, 1, 2, 3, 4)),
        'four PEGs': dict(type='PEG', num_layers=4),
        'PEG, fixed': dict(type='PEG', trainable=False),
        'PEG before block 0': dict(type='PEG', positions=(-1,)),
        'PEG before block 0, kernel 23': dict(type='PEG', positions=(-1,), kernel_size=23),
        'PEG after block 3': dict(type='PEG', positions=(3,)),
        'PEG after block 10': dict(type='PEG', positions=(10,)),
        'PEG for queries and keys': dict(type='PEG', target='qk'),
        'table + PEG': [dict(type='LearnablePE'), dict(type='PEG')],
        'relative': dict(type='RelativePE'),
        'sinusoids 2-D': dict(type='SinusoidalPE'),
        'random table': dict(type='RandomTablePE'),
        'sinusoids 1-D': dict(type='SinusoidalPE', ndim=1),
        'two PEGs': dict(type='PEG', num_layers=2),
        'PEG, kernel 5': dict(type='PEG', kernel_size=5),
        'PEG, kernel 7': dict(type='PEG', kernel_size=7),
        'PEG, separable': dict(type='PEG', conv_type='separable'),
        'PEG, full': dict(type='PEG', conv_type='full'),
    }.items()
}
tests = {
    f'{ratio:g}x': {'test_dataloader.dataset.pipeline.1.scale': (int(96 * ratio), int(96 * ratio))}
    for ratio in (0.5, 1, 1.5, 2, 3)
}
metrics = ['mIoU']
