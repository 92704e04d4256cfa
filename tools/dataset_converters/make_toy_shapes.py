"""Writes the toy dataset: textured shapes as COCO instances and as label maps in ADE20K's layout."""
import argparse
from pathlib import Path

from rich.progress import track

from cpvt_mm.datasets.toy_shapes import write_toy_shapes
from cpvt_mm.errors import exit_on_error


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('root', type=Path, nargs='?', default=Path('data/toy_shapes'), help='the folder to write')
    parser.add_argument('--num-train', type=int, default=800, help='images to train on')
    parser.add_argument('--num-val', type=int, default=100, help='images to evaluate on')
    parser.add_argument('--seed', type=int, default=0, help='the same seed gives the same pixels')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    images = write_toy_shapes(args.root, args.num_train, args.num_val, args.seed)
    for _ in track(images, total=args.num_train + args.num_val, description=f'Drawing {args.root}'):
        pass


if __name__ == '__main__':
    main()
