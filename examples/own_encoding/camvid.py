# Compares an own encoding with others on street scenes, at test sizes from 0.5 to 3 times the training size.
_base_ = '../../configs/_base_/studies/position_encodings_camvid_native.py'
config = 'camvid_config.py'
row_pe = dict(type='RowPE', scale=2.)
variants = dict(_delete_=True, **{
    'RowPE': dict(options={'model.backbone.position_encoding': row_pe}),
    **{name: _base_.variants[name] for name in ('none', 'learnable 2-D', 'PEG')}
})
