"""Writes a config that trains on your data: a folder, a COCO file, or the data.yaml of YOLO.

It knows COCO, Pascal VOC, YOLO, LabelMe, CVAT and Label Studio, and label maps: see docs/guides/own_data.md.
"""
import argparse
from pathlib import Path

from cpvt_mm.archs import TWINS_ARCHS
from cpvt_mm.zoo.members import RELEASED
from openmmlab_tools.choices import LABEL_MAP_KINDS
from openmmlab_tools.cli import command_parser
from openmmlab_tools.errors import say
from openmmlab_tools.own_data.config_options import TASKS
from openmmlab_tools.texts import shell

ARCHS = (*TWINS_ARCHS, *(name for name, member in RELEASED.items() if member.backbone == 'PyramidCPVT'
                         and not name.startswith('pyramid-')))


def parse_args() -> argparse.Namespace:
    parser = command_parser(__doc__)
    parser.add_argument('data', type=Path, help='folder, COCO file, or data.yaml')
    parser.add_argument('out', type=Path, help='config to write; must not exist')
    parser.add_argument('--task', choices=TASKS, help='(default: the most that the annotations allow)')
    parser.add_argument('--arch', choices=ARCHS, help='the backbone; pvtv2-b0 and nano are for a CPU, or few images '
                        '(default: pvtv2-b0)')
    parser.add_argument('--random-weights', action='store_true', help='start the backbone from random weights')
    parser.add_argument('--scale', type=int, nargs=2, metavar=('WIDTH', 'HEIGHT'),
                        help='size of images in training, in pixels (default: measured)')
    parser.add_argument('--iters', type=int, help='number of iterations (default: 400 for pvtv2-b0 and nano, '
                        'else 8000)')
    parser.add_argument('--batch', type=int, metavar='NUMBER', help='batch size (default: 4 for pvtv2-b0 '
                        'and nano, else 8)')
    parser.add_argument('--early-stop', type=int, metavar='NUMBER', help='stop after so many validations without '
                        'improvement')
    parser.add_argument('--ema', action='store_true', help='validate and save averages of the weights')
    parser.add_argument('--val', help='folder or file for validation, or, without a split for it, the share of the '
                        'images to take (default: that split, or 0.2)')
    parser.add_argument('--seed', type=int, default=0, help='which images the share has (default: 0)')
    parser.add_argument('--group-by', metavar='PATTERN', help='regular expression: images in whose names it finds the '
                        'same, such as crops of one slide, are all for training or all for validation')
    parser.add_argument('--from', dest='base', metavar='CONFIG', help='config to take the model from, a path or a name '
                        'such as mmdet::..., or a folder with a config and a checkpoint, such as demo/nuclei; its '
                        "backbone stays without --arch (default: one of this project's)")
    parser.add_argument('--masks', choices=LABEL_MAP_KINDS,
                        help='what the values of label maps are (default: guessed, and told)')
    parser.add_argument('--colours', type=Path, metavar='FILE', help='classes of label maps: in each line a name and a '
                        'colour as three numbers (default: labelmap.txt, classes.txt or the like in the folder)')
    parser.add_argument('--drop-empty', action='store_true', help='leave out images without objects in training')
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    options = vars(args)
    from rich.console import Console

    from cpvt_mm.data_config import new_config
    from openmmlab_tools.engine import load_config
    from openmmlab_tools.files import write_figure
    from openmmlab_tools.own_data.descriptions import check_written
    from openmmlab_tools.own_data.painted_samples import draw_sheet
    data, out = options.pop('data'), options.pop('out')
    doing = Console(stderr=True).status  # on a terminal only
    with doing('Reading the data, and writing the config ...'):
        lines = new_config(data, out, **{**options, 'scale': options['scale'] and tuple(options['scale'])})
    say(*lines)
    with doing('Checking what was written ...'):
        cfg = load_config(out)
        faults, is_fatal = check_written(cfg)
    say(*faults)
    sheet = out.with_name(f'{out.stem}_annotations') / 'samples.png'
    with doing('Painting samples ...'):
        painted = draw_sheet(cfg.train_dataloader.dataset.to_dict(), cfg.default_scope)
    if painted:
        write_figure(sheet, painted)
        say(f'Look at {sheet}: it shows what was read.')
    say(f'\nWrote {out}. ' + ('Correct the errors before you train.' if is_fatal else
                              f'Next: {shell("cpvt_mm", "train", out)}'))
