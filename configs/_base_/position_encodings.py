# What tools/analysis_tools/compare_position_encodings.py compares: names, and values of `position_encoding`.
encodings = {
    'none': None,
    'learnable 2-D': dict(type='LearnablePE'),
    'sinusoidal 2-D': dict(type='SinusoidalPE'),
    'random Fourier': dict(type='RandomFourierPE'),
    'rotary': dict(type='RotaryPE'),
    'relative': dict(type='RelativePE'),
    'PEG': dict(type='PEG'),
    'PEG + learnable 2-D': [dict(type='PEG'), dict(type='LearnablePE')],
}
