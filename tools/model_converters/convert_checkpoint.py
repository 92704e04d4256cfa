"""Converts a checkpoint of another library to the parameter names of PyramidCPVT or CPVT."""
import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

if not find_spec('cpvt_mm'):
    sys.exit(f'error: {sys.executable} has no cpvt_mm: activate the environment that has it (docs/get_started.md).')

from openmmlab_tools.errors import exit_on_error, say


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source', type=Path, metavar='SRC', help='the checkpoint to read; its format is detected')
    parser.add_argument('target', type=Path, metavar='DST', help='the file to write: .pth or .safetensors')
    parser.add_argument('--half', action='store_true', help='round to float16, for a file of half the size')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    from cpvt_mm.zoo.convert import convert_checkpoint
    source, left_out = convert_checkpoint(args.source, args.target, args.half)
    below = f' below {source.prefix!r}' if source.prefix else ''
    say(f'{args.source}: a {source.format.backbone} of format {source.format}{below}')
    if source.format.norm_eps:
        say(f'{args.source}: models of its format have a norm_eps of {source.format.norm_eps:g}, which {args.target} '
            'does not contain: set it in the new model')
    say(f'{args.target}: written; left out: {", ".join(left_out) or "nothing"}')


if __name__ == '__main__':
    main()
