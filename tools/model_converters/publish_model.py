"""Writes only the weights and meta of a checkpoint, with the first 8 digits of the SHA-256 in the file name."""
import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

from openmmlab_tools.errors import exit_on_error, say


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source', type=Path, metavar='IN', help='the checkpoint to read')
    parser.add_argument('stem', type=Path, metavar='OUT', help='writes OUT-<8 digits>.pth')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    from openmmlab_tools.checkpoints.publishing import publish_model
    path, left_out = publish_model(args.source, args.stem)
    say(f'{path}: written; left out: {", ".join(left_out) or "nothing"}')


if __name__ == '__main__':
    main()
