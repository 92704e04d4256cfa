"""Draws the nearest neighbours of image patches, in the features of a backbone before and after distillation.

It reads the last checkpoint that `cpvt_mm distil` wrote, and writes neighbours.png beside it.
"""
import argparse
from pathlib import Path

from mmengine.runner import find_latest_checkpoint

from cpvt_mm.distilling import Distillation
from cpvt_mm.zoo.members import PYRAMIDS
from lab.neighbours import agreement, find_neighbours, neighbours_figure, read_patches
from openmmlab_tools.checkpoints.fitting import load_weights
from openmmlab_tools.errors import UserError, exit_on_error
from openmmlab_tools.files import write_figure


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('work_dir', type=Path, help='folder that cpvt_mm distil wrote')
    parser.add_argument('images', type=Path, help='folder of at least ten images that the training did not contain')
    parser.add_argument('--arch', choices=PYRAMIDS, default='pyramid-cpvt-nano', help='backbone that learnt')
    parser.add_argument('--teacher', default='lite0', help='its teacher')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    checkpoint = find_latest_checkpoint(str(args.work_dir))
    if checkpoint is None:
        raise UserError(f'{args.work_dir} has no checkpoint: pass the --work-dir of cpvt_mm distil.')
    patches, numbers = read_patches(args.images)
    model = Distillation(args.arch, args.teacher)
    load_weights(model, checkpoint)
    neighbours = find_neighbours(model, patches, numbers)
    write_figure(args.work_dir / 'neighbours.png', neighbours_figure(patches, numbers, neighbours))
    *students, teacher = neighbours
    shares = ', '.join(f'{agreement(neighbours[name], neighbours[teacher]):.3f} with {name}' for name in students)
    print(f'Share of the ten nearest neighbours of {len(patches)} patches that are the same as the teacher\'s: '
          f'{shares}. neighbours.png is in {args.work_dir}.')


if __name__ == '__main__':
    main()
