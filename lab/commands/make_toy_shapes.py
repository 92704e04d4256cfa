"""Writes a toy dataset: textured shapes as COCO instances and as label maps in ADE20K's layout, or moving in videos."""
import argparse
from pathlib import Path

from rich.progress import track

from lab.datasets.toy_shapes import write_toy_shapes
from lab.datasets.toy_video import write_toy_video
from openmmlab_runs.errors import exit_on_error


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('root', type=Path, nargs='?',
                        help='the folder to write; data/toy_shapes, or data/toy_video, if not given')
    parser.add_argument('--video', action='store_true',
                        help='write videos in the format of YouTube-VIS, in which the shapes move')
    parser.add_argument('--num-train', type=int, default=800, help='number of training images or videos')
    parser.add_argument('--num-val', type=int, default=100, help='number of validation images or videos')
    parser.add_argument('--seed', type=int, default=0, help='the same seed gives the same pixels')
    args = parser.parse_args()
    root = args.root or Path('data/toy_video' if args.video else 'data/toy_shapes')
    write = write_toy_video if args.video else write_toy_shapes
    written = write(root, args.num_train, args.num_val, args.seed)
    for _ in track(written, total=args.num_train + args.num_val, description=f'Drawing {root}'):
        pass
