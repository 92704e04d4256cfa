"""Converts the 2018 Data Science Bowl (stage1_train.zip, unpacked) to images with COCO annotations.

Run it again to continue after an interruption.
"""
import argparse
from pathlib import Path

from rich.progress import track

from lab.datasets.converters import find_nuclei, write_nuclei
from openmmlab_runs.cli import resumable
from openmmlab_runs.errors import exit_on_error


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('source', type=Path, help='folder of the download, with a folder for each image')
    parser.add_argument('root', type=Path, nargs='?', default=Path('data/nuclei'), help='the folder to write')
    return parser.parse_args()


@exit_on_error
@resumable
def main() -> None:
    args = parse_args()
    images = write_nuclei(args.source, args.root)
    for _ in track(images, total=len(find_nuclei(args.source)), description=f'Writing {args.root.name}'):
        pass
