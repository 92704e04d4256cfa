# Compares an own encoding with others in a detector, at test sizes from 0.5 to 2 times those of the training.
_base_ = '../../configs/_base_/studies/position_encodings_nuclei.py'
config = 'nuclei_config.py'
row_pe = dict(type='RowPE', scale=2.)
variants = dict(_delete_=True, **{
    'RowPE': dict(options={**_base_.variants['none']['options'], 'model.backbone.position_encoding': row_pe}),
    **{name: _base_.variants[name] for name in ('none', 'learnable 2-D', 'PEG')}
})
