# Is a backbone that learnt from a teacher without labels (cpvt_mm distil) a better start than random weights? All
# runs have as many iterations, with all labels or with a tenth of them. Studies of a data set set `variants`.
starts = {
    'random': {},
    'distilled': {'model.backbone.init_cfg': dict(
        type='Pretrained', checkpoint='work_dirs/distil/pyramid-cpvt-nano.safetensors')},
}
# The test after the training is enough.
no_validation = {'val_cfg': None, 'val_dataloader': None, 'val_evaluator': None}
