"""Converts a checkpoint of PyramidCPVT or CPVT, or of a model with one of them, between the libraries' formats."""
import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

from openmmlab_tools.cli import import_lightly
from openmmlab_tools.errors import exit_on_error, say


def parse_args() -> argparse.Namespace:
    formats = import_lightly('cpvt_mm.zoo.convert').TARGETS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source', type=Path, metavar='SRC', help='the checkpoint to read; its format is detected')
    parser.add_argument('target', type=Path, metavar='DST', help='the file to write: .pth or .safetensors')
    parser.add_argument('--to', choices=formats, default='cpvt_mm', help='the format to write (default: cpvt_mm)')
    parser.add_argument('--half', action='store_true', help='round to float16, for a file of half the size')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    from cpvt_mm.zoo.convert import convert_checkpoint
    source, target, left_out = convert_checkpoint(args.source, args.target, args.to, args.half)
    below = f' below {source.prefix!r}' if source.prefix else ''
    say(f'{args.source}: a {source.format.backbone} of format {source.format}{below}')
    if source.format.norm_eps and source.format.norm_eps != target.norm_eps:
        say(f'{args.source}: models of its format have a norm_eps of {source.format.norm_eps:g}, which '
              f'{args.target} does not contain: set it in the new model')
    say(f'{args.target}: written in format {target}; left out: {", ".join(left_out) or "nothing"}')


if __name__ == '__main__':
    main()
