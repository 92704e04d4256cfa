"""Measures how much of row and column a ridge regression reads from the features of backbones, by layer and size.

Without models, it compares several position encodings, and the forms of DINOv2 and DINOv3, with random weights. Writes
a figure, and a table as .md and .csv. Images of noise say nothing of where a cell is; in photographs the sky is above.
"""
import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
from mmengine.config import Config
from rich.progress import track
from torch import Tensor

from lab import probing
from lab.commands.translation_equivariance import IMAGENET
from lab.equivariance import read_square, smooth_noise
from lab.results import write_report
from openmmlab_runs.checkpoints.loading import to_input
from openmmlab_runs.errors import UserError, exit_on_error
from openmmlab_runs.texts import markdown_table


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('models', nargs='*', metavar='MODEL',
                        help='name of list_backbones(), timm:NAME or transformers:NAME, which may be a folder')
    parser.add_argument('--pretrained', action='store_true', help='load the released weights of the models')
    parser.add_argument('--images', type=Path, nargs='+', metavar='FILE',
                        help='images whose central squares are used, normalized as for ImageNet; not given: smooth '
                        'noise')
    parser.add_argument('--count', type=int, default=32, help='images of noise')
    parser.add_argument('--size', type=int, default=224, help='side of the images in pixels, that of the training')
    parser.add_argument('--scales', type=float, nargs='+', default=[0.5, 1., 2., 3.], help='by which it is multiplied')
    parser.add_argument('--seed', type=int, default=0, help='seed of noise and of random weights')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/position_probe.png'), help='file of the figure')
    return parser.parse_args()


def drawing(args: argparse.Namespace) -> Callable[[int, int], Tensor]:
    """Returns what makes an image `(1, 3, side, side)` of a side and the index of an image."""
    if args.images:
        cfg = Config(dict(model=dict(data_preprocessor=IMAGENET)))
        return lambda side, index: to_input(read_square(args.images[index], side), cfg)
    return lambda side, index: smooth_noise(side, args.seed * args.count + index)


@exit_on_error
def main() -> None:
    args = parse_args()
    sides = [round(args.size * scale) for scale in args.scales]
    if min(sides) < 4:
        raise UserError(f'--size {args.size} and --scales {min(args.scales)} give images of {min(sides)} pixels: '
                        'choose larger ones.')
    draw, count, results = drawing(args), len(args.images or range(args.count)), {}
    for name in track(args.models or list(probing.FORMS), 'Probing'):
        torch.manual_seed(args.seed)
        model = (probing.build_model(name, args.pretrained) if args.models else
                 probing.build_form(name, args.seed))
        results[name] = probing.measure(model, draw, sides, count)
    weights = 'released' if args.pretrained else 'random'
    title = f'What a linear map reads of row and column: {weights} weights, {count} images, {args.size} px at 1x'
    last = {name: [reading for reading in readings if reading.layer == readings[-1].layer]
            for name, readings in results.items()}
    table = f'{title}. R squared after the last layer, row and column:\n\n' + markdown_table(
        ['model', *(f'{side} px' for side in sides)],
        [[name, *(f'{of.row:.2f}±{of.row_margin:.2f}, {of.column:.2f}±{of.column_margin:.2f}' for of in readings)]
         for name, readings in last.items()])
    rows = [dict(model=name, **asdict(reading)) for name, readings in results.items() for reading in readings]
    print(table, write_report(args.out, rows, table, probing.figure_of(results, title)), sep='\n')
