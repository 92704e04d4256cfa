# The position encodings to compare, on any config.
variants = {
    name: dict(options={'model.backbone.position_encoding': encoding})
    for name, encoding in {
        'none': None,
        'learnable 2-D': dict(type='LearnablePE'),
        'sinusoidal 2-D': dict(type='SinusoidalPE'),
        'random Fourier': dict(type='RandomFourierPE'),
        'rotary': dict(type='RotaryPE'),
        'relative': dict(type='RelativePE'),
        'PEG': dict(type='PEG'),
        'PEG + learnable 2-D': [dict(type='PEG'), dict(type='LearnablePE')],
    }.items()
}
