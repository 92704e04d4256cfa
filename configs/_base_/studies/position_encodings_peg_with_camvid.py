# A PEG together with each newer encoding, on street scenes that keep their aspect, at the training size and twice that.
_base_ = './position_encodings_camvid_native.py'
variants = dict(_delete_=True, **{
    f'PEG + {name}': dict(options={'model.backbone.position_encoding': [dict(type='PEG'), encoding]})
    for name, encoding in {
        'rotary of DINOv3': dict(type='RotaryPE', form='dinov3', rescale=2.),
        'mixed rotary': dict(type='MixedRotaryPE'),
        'continuous relative': dict(type='ContinuousRelativePE'),
        'FIRE': dict(type='FirePE'),
        'LookHere': dict(type='LookHerePE'),
    }.items()
})
tests = dict(_delete_=True, **{name: _base_.tests[name] for name in ('1x', '2x')})
