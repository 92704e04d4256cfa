"""Joins pictures to one picture, with the same height in each row."""
import argparse
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from openmmlab_tools.errors import exit_on_error

GAP = 6  # pixels between pictures


def join(pictures: Sequence[Image.Image], columns: int, height: int) -> Image.Image:
    """Places pictures in rows of `columns`, each scaled to a height in pixels, on white."""
    scaled = [picture.convert('RGB').resize((max(1, round(picture.width * height / picture.height)), height))
              for picture in pictures]
    rows = [scaled[start:start + columns] for start in range(0, len(scaled), columns)]
    widths = [sum(picture.width + GAP for picture in row) - GAP for row in rows]
    canvas = Image.new('RGB', (max(widths), len(rows) * (height + GAP) - GAP), 'white')
    for number, row in enumerate(rows):
        x = 0
        for picture in row:
            canvas.paste(picture, (x, number * (height + GAP)))
            x += picture.width + GAP
    return canvas


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('out', type=Path, help='file to write')
    parser.add_argument('pictures', type=Path, nargs='+', help='files to join')
    parser.add_argument('--columns', type=int, default=2, help='pictures in a row')
    parser.add_argument('--height', type=int, default=320, help='height of each picture in pixels')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    join([Image.open(path) for path in args.pictures], args.columns, args.height).save(args.out)
    print(args.out)
