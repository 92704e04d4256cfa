# For comparisons of small backbones with PVTv2-b0, from random weights, with the same data and schedule.
conv = {'model.backbone.arch': dict(name='nano', mlp_mode='conv')}
# These iterations need the same time as 400 iterations of PVTv2-b0, whose steps are 1.4 times as long (medians of 12
# steps in turns, one thread of an AMD EPYC).
longer = {'train_cfg.max_iters': 560, 'train_cfg.val_interval': 560, 'param_scheduler.1.end': 560,
          'param_scheduler.1.T_max': 510}
# 3.40 M parameters; PVTv2-b0 has 3.41 M.
wider = {'model.backbone.arch': dict(embed_dims=(42, 84, 168, 252), depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 6),
                                     mlp_ratios=(4, 4, 4, 4), sr_ratios=(8, 4, 2, 1), mlp_mode='conv')}
