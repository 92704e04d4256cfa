# The ablations of PEG on toy quarters, where only the position tells the class.
_base_ = './peg_ablations.py'
config = '../../toy/linear_cpvt_toy-quarters-96x96.py'
