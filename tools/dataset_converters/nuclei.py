"""Converts the 2018 Data Science Bowl (stage1_train.zip, unpacked) to images with COCO annotations.

Run it again to continue after an interruption.
"""
import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

from rich.progress import track

from converters import find_nuclei, write_nuclei
from cpvt_mm.cli import resumable
from cpvt_mm.errors import exit_on_error


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


if __name__ == '__main__':
    main()
