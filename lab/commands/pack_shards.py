"""Packs a folder of data into tar files, which configs read as data_root='tar://::FILES/'."""
import argparse
from pathlib import Path

from lab.datasets.shards import write_shards
from openmmlab_runs.config_text import to_source
from openmmlab_runs.errors import exit_on_error, say


@exit_on_error
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('folder', type=Path, help='a folder of data, such as data/nuclei')
    parser.add_argument('prefix', type=Path, nargs='?',
                        help='the files are PREFIX-00000-of-00008.tar and so on; the folder if not given')
    parser.add_argument('--shards', type=int, default=8, help='number of files')
    args = parser.parse_args()
    shards = write_shards(args.folder, args.prefix or args.folder.resolve(), args.shards)
    say('data_root=' + to_source(f'tar://::{shards}/'))
