# The position encodings to compare, on any config.
variants = {
    name: dict(options={'model.backbone.position_encoding': encoding})
    for name, encoding in {
        'none': None,
        'learnable 2-D': dict(type='LearnablePE'),
        'sinusoidal 2-D': dict(type='SinusoidalPE'),
        'random Fourier': dict(type='RandomFourierPE'),
        'rotary': dict(type='RotaryPE'),
        'rotary of DINOv3': dict(type='RotaryPE', form='dinov3', rescale=2.),
        'mixed rotary': dict(type='MixedRotaryPE'),
        'relative': dict(type='RelativePE'),
        'continuous relative': dict(type='ContinuousRelativePE'),
        'FIRE': dict(type='FirePE'),
        'LookHere': dict(type='LookHerePE'),
        'parabolic': dict(type='ParabolicPE'),
        'parabolic, fixed': dict(type='ParabolicPE', trainable=False),
        'PEG': dict(type='PEG'),
        'PEG + learnable 2-D': [dict(type='PEG'), dict(type='LearnablePE')],
        'PEG + parabolic': [dict(type='PEG'), dict(type='ParabolicPE')],
        'PEG + parabolic, fixed': [dict(type='PEG'), dict(type='ParabolicPE', trainable=False)],
    }.items()
}
