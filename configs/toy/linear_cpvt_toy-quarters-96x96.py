# From random weights: none are released for an arch of this size.
# For the ablations of PEG: squares of 12 x 12 cells, and only the encoding has information about positions.
_base_ = [
    '../_base_/models/linear_cpvt.py',
    '../_base_/mmseg_runtime.py',
    '../_base_/datasets/toy_quarters.py',
    '../_base_/schedules/study.py',
]
model = dict(backbone=dict(img_size=96), decode_head=dict(num_classes=4))
# Figures of a test need more time than the test.
default_hooks = dict(checkpoint=dict(interval=160), report=None)
