"""Prints which share of the pixels of training batches is padding, for the image sizes of COCO annotation files.

Images are resized with their aspect ratio, and batches are drawn at random: all images, or landscapes and portraits
apart, as mmdet's AspectRatioBatchSampler does. A batch is padded to its largest height and width in multiples of 32
pixels. With padding='exact', each image is padded alone, and images of one padded size run together.
"""
import argparse
import json
import random
from collections.abc import Sequence
from itertools import chain
from math import prod
from pathlib import Path

from mmcv import rescale_size

from cpvt_mm.models.several_sizes import padded_size
from cpvt_mm.tokens.grid import Size
from lab.arguments import positive
from openmmlab_tools.errors import UserError, as_sentence, exit_on_error
from openmmlab_tools.texts import markdown_table


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('annotations', nargs='+', type=Path, help='COCO annotation files')
    parser.add_argument('--scale', nargs=2, type=positive, default=[1333, 800], metavar=('LONG', 'SHORT'),
                        help='scale of the resizing, in pixels')
    parser.add_argument('--batch-sizes', nargs='+', type=positive, default=[2, 4, 8], help='images in a batch')
    parser.add_argument('--epochs', type=positive, default=100, help='number of random orders of the images')
    return parser.parse_args()


def read_sizes(paths: Sequence[Path], scale: tuple[int, int]) -> list[Size]:
    """Returns height and width of each image after resizing, in pixels."""
    sizes = []
    for path in paths:
        with as_sentence(f'{path} has no image sizes', 'give COCO annotation files'):
            images = json.loads(path.read_text())['images']
            sizes += [rescale_size((image['width'], image['height']), scale)[::-1] for image in images]
    return sizes


def draw_batches(sizes: Sequence[Size], batch_size: int, grouped: bool, draws: random.Random) -> list[list[Size]]:
    """Draws the whole batches of one epoch; if `grouped`, landscapes and portraits are in different batches."""
    order = draws.sample(sizes, len(sizes))
    parts = [[size for size in order if (size[0] > size[1]) == is_portrait] for is_portrait in (False, True)]
    return [part[i:i + batch_size] for part in (parts if grouped else [order])
            for i in range(0, len(part) - batch_size + 1, batch_size)]


@exit_on_error
def main() -> None:
    args = parse_args()
    sizes, rows = read_sizes(args.annotations, tuple(args.scale)), []
    for batch_size in args.batch_sizes:
        for grouped in (True, False):
            draws = random.Random(0)
            batches = [batch for _ in range(args.epochs) for batch in draw_batches(sizes, batch_size, grouped, draws)]
            if not batches:
                raise UserError(f'{len(sizes)} images do not fill a batch of {batch_size}: lower --batch-sizes.')
            pixels = sum(map(prod, chain(*batches)))
            padded = sum(len(batch) * prod(padded_size(batch)) for batch in batches)
            alone = [[padded_size([size]) for size in batch] for batch in batches]
            exact, groups = sum(map(prod, chain(*alone))), sum(len(set(batch)) for batch in alone)
            rows.append([str(batch_size), 'yes' if grouped else 'no', f'{1 - pixels / padded:.1%}',
                         f'{1 - pixels / exact:.1%}', f'{1 - exact / padded:.1%}', f'{groups / len(batches):.1f}'])
    print(f'{len(sizes)} images, resized to {args.scale[0]} x {args.scale[1]}\n')
    print(markdown_table(['batch', 'grouped by aspect ratio', 'padding', "padding with 'exact'", "'exact' saves",
                          'groups of a batch'], rows), end='')
