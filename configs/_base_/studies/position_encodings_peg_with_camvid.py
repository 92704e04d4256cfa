# A PEG together with each other encoding, on street scenes that keep their aspect.
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
