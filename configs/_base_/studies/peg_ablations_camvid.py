# The ablations of PEG on street scenes, at test sizes from 0.5 to 3 times the training size.
_base_ = './peg_ablations.py'
config = '../../camvid/linear_cpvt_camvid-96x96.py'
