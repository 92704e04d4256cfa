"""Prints a markdown table of the parameters and FLOPs of configs, attention included."""
import argparse
from pathlib import Path

from rich.progress import track

from cpvt_mm.complexity import measure_config
from cpvt_mm.engine import load_config
from cpvt_mm.errors import UserError, exit_on_error

SHAPES = {'mmdet': (800, 1216), 'mmseg': (512, 512), 'mmpretrain': (224, 224)}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('configs', nargs='+', help='config files')
    parser.add_argument('--shape', type=int, nargs=2, metavar=('HEIGHT', 'WIDTH'),
                        help=f'image size in pixels (default: {SHAPES})')
    return parser.parse_args()


@exit_on_error
def main() -> None:
    args = parse_args()
    if args.shape and min(args.shape) < 1:
        raise UserError(f'--shape is {args.shape[0]} {args.shape[1]}, but both must be at least 1.')
    rows = []
    for path in track(args.configs, 'Counting'):
        cfg = load_config(path)
        height, width = args.shape or SHAPES[cfg.default_scope]
        backbone, model = measure_config(cfg, (height, width))
        rows.append(f'| {Path(path).stem} | {height} x {width} | {backbone.params / 1e6:.2f} | {model.params / 1e6:.2f}'
                    f' | {backbone.flops / 1e9:.1f} | {model.flops / 1e9:.1f} |')
    print('| config | image | backbone, M params | model, M params | backbone, GFLOPs | model, GFLOPs |')
    print('|---|---|---|---|---|---|')
    print(*rows, sep='\n')


if __name__ == '__main__':
    main()
