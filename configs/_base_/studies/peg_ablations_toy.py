# The ablations of PEG on toy shapes, at test sizes from 0.5 to 3 times the training size.
_base_ = './peg_ablations.py'
config = '../../toy/linear_cpvt_toy-shapes-96x96.py'
