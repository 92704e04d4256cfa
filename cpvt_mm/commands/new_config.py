"""Reads your images and labels, and writes a config that trains on them.

It reads COCO, Pascal VOC, YOLO, LabelMe, CVAT, Label Studio, CSV, label maps and other layouts: see
docs/guides/own_data.md.
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
    parser.add_argument('data', type=Path, help='folder with images and labels, a COCO file, or data.yaml of YOLO')
    parser.add_argument('out', type=Path, help='config to write; the file must not exist')
    parser.add_argument('--task', choices=TASKS, help='what to predict (default: semantic for label maps, instances if '
                        'every object has a mask, else boxes)')
    parser.add_argument('--arch', choices=ARCHS, help='the backbone; pvtv2-b0 and nano are for a CPU or few images, '
                        'and we recommend a GPU for all others (default: pvtv2-b0)')
    parser.add_argument('--random-weights', action='store_true', help='start the backbone from random weights')
    parser.add_argument('--scale', type=int, nargs=2, metavar=('WIDTH', 'HEIGHT'),
                        help='size of images in training, in pixels (default: chosen from your images)')
    parser.add_argument('--iters', type=int, help='number of iterations (default: 400 for pvtv2-b0 and nano, '
                        '8000 for all other backbones)')
    parser.add_argument('--batch', type=int, metavar='NUMBER', help='batch size (default: 4 for pvtv2-b0 '
                        'and nano, 8 for all other backbones)')
    parser.add_argument('--early-stop', type=int, metavar='NUMBER', help='stop after this number of validations '
                        'without improvement; 3 needs at least --iters 500 to have an effect')
    parser.add_argument('--ema', action='store_true', help='validate and save averaged weights')
    parser.add_argument('--val', help='folder or file for validation, or the share of the images, such as 0.2 '
                        '(default: the split in your data, or 0.2)')
    parser.add_argument('--seed', type=int, default=0, help='chooses which images belong to this share (default: 0)')
    parser.add_argument('--group-by', metavar='PATTERN', help='regular expression: images with the same match in their '
                        "names, such as 'slide\\d+', are either all for training or all for validation")
    parser.add_argument('--from', dest='base', metavar='CONFIG', help='config with the model, a path or a name such as '
                        'mmdet::..., or a folder with a config and a checkpoint, such as demo/nuclei; to replace its '
                        'backbone, add --arch (default: a config of this project)')
    parser.add_argument('--masks', choices=LABEL_MAP_KINDS,
                        help='what the values in label maps mean (default: guessed and printed)')
    parser.add_argument('--colours', type=Path, metavar='FILE', help='file with the colours in label maps: each line '
                        'has a class name and three numbers (default: labelmap.txt, classes.txt or a similar file)')
    parser.add_argument('--drop-empty', action='store_true', help='skip images without objects in training')
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
    with doing('Drawing samples ...'):
        painted = draw_sheet(cfg.train_dataloader.dataset.to_dict(), cfg.default_scope)
    if painted:
        write_figure(sheet, painted)
        say(f'Look at {sheet} before you train: the labels should lie on your objects, with the right names.')
    say(f'\nWrote {out}. ' + ('Correct the errors before you train.' if is_fatal else
                              f'Next: {shell("cpvt_mm", "train", out)}'))
