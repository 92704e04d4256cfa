"""Converts CamVid, in the version of the SegNet tutorial, to the layout of mmseg.

Run it again to continue after an interruption.
"""
import argparse
from pathlib import Path

from rich.progress import track

from lab.datasets.converters import find_camvid, write_camvid
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import exit_on_error


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('source', type=Path,
                        help='the folder CamVid, which contains train, trainannot, val, valannot, test and testannot')
    parser.add_argument('root', type=Path, nargs='?', default=Path('data/camvid'), help='the folder to write')
    return parser.parse_args()


@exit_on_error
@resumable
def main() -> None:
    args = parse_args()
    images = write_camvid(args.source, args.root)
    for _ in track(images, total=len(find_camvid(args.source)), description=f'Writing {args.root.name}'):
        pass
